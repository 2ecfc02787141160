"""Arguments that fit a tool's JSON schema.

Followed: references and combinations (see `flattened`), `const`, `default`, `enum`, `examples`, types, bounds,
lengths, `format`, required properties. Not followed: `pattern`, `not`, `if`, and rules between values.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import as_object
from rollmill_services.models.scripted.draws import Draws
from rollmill_services.models.scripted.numeric import fitting_number
from rollmill_services.models.scripted.schemas import flattened, required_properties, schema_type, size_limit

CITIES = ("Lisbon", "Nairobi", "Oslo", "Lima", "Hanoi", "Toronto", "Perth", "Quito")
_PLACE = re.compile(r"\b(?:in|for|at|of) ((?:[A-Z][\w'’-]{1,30}\b ?){1,3})")
_PLACE_NAMES = frozenset({"city", "location", "place", "town"})
_FORMATS = {
    "date": "2025-01-15",
    "time": "12:00:00Z",
    "date-time": "2025-01-15T12:00:00Z",
    "duration": "PT1H",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uuid": "6f0c9a52-8b1d-4c6e-9f3a-2d7b5e814c90",
}
_DEEPEST, _LONGEST_LIST, _LONGEST_TEXT = 16, 100, 10_000


class ArgumentWriter:
    """Writes the least that fits a schema, with what the user's message gives.

    Args:
        text: the user's message, where a city is looked for.
        numbers: whole numbers for numeric parameters, used up in order.
        draws: decides what the message leaves open.
    """

    def __init__(self, text: str, numbers: Iterable[int], draws: Draws) -> None:
        self._text = text
        self._numbers = iter(numbers)
        self._draws = draws
        self._root: JsonObject = {}

    def arguments(self, schema: JsonValue) -> JsonObject:
        """Return an object with the required properties of the schema."""
        self._root = as_object(schema)
        return self._object(flattened(self._root, self._root), "", 0, 0)

    def _value(self, schema: JsonValue, name: str, nth: int, depth: int) -> JsonValue:
        """Make one value; `nth` is its place in a list, so that members differ."""
        flat = flattened(schema, self._root)
        for keyword in ("const", "default"):
            if keyword in flat:
                return flat[keyword]
        for keyword in ("enum", "examples"):
            if isinstance(flat.get(keyword), list) and flat[keyword]:
                return self._nth_of(flat[keyword], name, nth)
        make = _MAKERS.get(schema_type(flat), ArgumentWriter._string)
        return make(self, flat, name, nth, depth + 1) if depth < _DEEPEST else None

    def _object(self, schema: JsonObject, name: str, nth: int, depth: int) -> JsonObject:
        required = required_properties(schema).items()
        return {member: self._value(member_schema, member, nth, depth) for member, member_schema in required}

    def _array(self, schema: JsonObject, name: str, nth: int, depth: int) -> list[JsonValue]:
        length = size_limit(schema, "minItems", 1, most=_LONGEST_LIST) or 1
        length = min(length, size_limit(schema, "maxItems", length, most=_LONGEST_LIST))
        return [self._value(schema.get("items"), name, index, depth) for index in range(length)]

    def _string(self, schema: JsonObject, name: str, nth: int, depth: int) -> str:
        text = _FORMATS.get(str(schema.get("format"))) or self._words(name, nth)
        text = text.ljust(size_limit(schema, "minLength", 0, most=_LONGEST_TEXT), "x")
        return text[: size_limit(schema, "maxLength", len(text), most=_LONGEST_TEXT)]

    def _words(self, name: str, nth: int) -> str:
        if name.lower() in _PLACE_NAMES:
            place = _PLACE.search(self._text) if nth == 0 else None
            return place[1].strip() if place else str(self._nth_of(CITIES, name, nth))
        return f"{name} {nth + 1}" if nth else name

    def _nth_of(self, options: list[JsonValue] | tuple[str, ...], name: str, nth: int) -> JsonValue:
        return options[(self._draws.whole(name, 0, len(options) - 1) + nth) % len(options)]

    def _integer(self, schema: JsonObject, name: str, nth: int, depth: int) -> float:
        return fitting_number(schema, self._numbers, whole=True, nth=nth)

    def _number(self, schema: JsonObject, name: str, nth: int, depth: int) -> float:
        return fitting_number(schema, self._numbers, whole=False, nth=nth)

    def _boolean(self, schema: JsonObject, name: str, nth: int, depth: int) -> bool:
        return self._draws.pick(name, (True, False)) is (nth % 2 == 0)

    def _null(self, schema: JsonObject, name: str, nth: int, depth: int) -> None:
        return None


_Make: TypeAlias = Callable[[ArgumentWriter, JsonObject, str, int, int], JsonValue]
_MAKERS: dict[str, _Make] = {
    "object": ArgumentWriter._object,
    "array": ArgumentWriter._array,
    "string": ArgumentWriter._string,
    "integer": ArgumentWriter._integer,
    "number": ArgumentWriter._number,
    "boolean": ArgumentWriter._boolean,
    "null": ArgumentWriter._null,
}
