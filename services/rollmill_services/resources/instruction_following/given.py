import operator
from collections.abc import Callable
from typing import TypeAlias

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import InputError

Check: TypeAlias = Callable[[str], bool]
"""Says whether an answer, which is not empty, follows an instruction."""
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "at least": operator.ge,
    "less than": operator.lt,
    "at most": operator.le,
    "more than": operator.gt,
    "exactly": operator.eq,
}


class Given:
    """The arguments of one instruction, as the row's `kwargs` have them.

    Args:
        values: names and values; null is as good as absent.
        pointer: where they stand in the row.
    """

    def __init__(self, values: JsonObject, pointer: str) -> None:
        self._values = values
        self._pointer = pointer

    def text(self, name: str) -> str:
        """Return an argument that must be a text that is not empty.

        Raises:
            InputError: it is missing, or something else.
        """
        value = self._values.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(name, "must be a text that is not empty")
        return value

    def texts(self, name: str) -> list[str]:
        """Return an argument that must be a list of texts.

        Raises:
            InputError: it is missing, or something else.
        """
        value = self._values.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
            raise self._wrong(name, "must be a list of at least one text")
        return [str(text) for text in value]

    def whole(self, name: str) -> int:
        """Return an argument that must be a whole number, at least 0; 3.0 is one.

        Raises:
            InputError: it is missing, or something else.
        """
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
            raise self._wrong(name, "must be a whole number, at least 0")
        return int(value)

    def compared(self, number: str, relation: str = "relation") -> Callable[[int], bool]:
        """Return whether a count has the relation to the number that two arguments tell.

        Raises:
            InputError: one of them is missing, or something else.
        """
        wanted, name = self.whole(number), self._values.get(relation)
        compare = _RELATIONS.get(name) if isinstance(name, str) else None
        if compare is None:
            raise self._wrong(relation, f"must be one of: {', '.join(_RELATIONS)}")
        return lambda count: compare(count, wanted)

    def _wrong(self, name: str, detail: JsonValue) -> InputError:
        fault = {"pointer": f"{self._pointer}/{name}", "detail": detail}
        return InputError(f"{self._pointer.removeprefix('/')}: {name!r} {detail}", errors=[fault])
