"""The problems of a topology file: each is told once, with its place, and never with a secret in it.

Secret are the values of `SecretStr` settings and everything that came from the environment.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from rollmill.config.settings_refs import ValuePath, secret_paths, texts
from rollmill.contracts.json import JsonValue
from rollmill.errors import ConfigError

WITHHELD: Final = "not accepted (the reason is withheld: it may show a secret or a value of the environment)"

_OWN_WORDS: Final = frozenset(get_args(ErrorType)) - {"value_error", "assertion_error"}
"""Error types whose messages pydantic words itself; it quotes the input only as `error` or `tag`."""


class Fault(NamedTuple):
    """One problem of a topology file."""

    pointer: str
    """YAML path such as `services.policy.use`, or a line and column, or empty for the file as a whole."""
    detail: str


class Expanded(str):
    """A string that the environment is part of. Its `repr` is the text that was written, never the value."""

    template: str
    """The text in the file, with its placeholders."""

    def __new__(cls, value: str, template: str = "") -> Self:
        """Make a string of the expanded value and keep its template next to it."""
        expanded = super().__new__(cls, value)
        expanded.template = template
        return expanded

    def __repr__(self) -> str:
        return repr(self.template)


def dotted(*path: str | int) -> str:
    """Write a path as it appears in messages: `datasets.0.agent`."""
    return ".".join(map(str, path))


def config_error(faults: Iterable[Fault], source: Path | None = None) -> ConfigError:
    """Make one error of all faults, each once, one a line with the file name in front."""
    unique = list(dict.fromkeys(faults))
    lines = [": ".join(filter(None, (str(source or ""), fault.pointer, fault.detail))) for fault in unique]
    return ConfigError("\n".join(lines), errors=[fault._asdict() for fault in unique])


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or nothing when none is near."""
    # The near names of a value from the environment would tell most of that value.
    near = [] if isinstance(name, Expanded) else difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def model_faults(model: type[BaseModel], values: JsonValue, *where: str | int, what: str = "key") -> Iterator[Fault]:
    """Validate values and yield what is wrong with them.

    Args:
        model: the class that the values must fit.
        values: a JSON value, in which strings from the environment are `Expanded`.
        where: path of the values within the file.
        what: word for an entry that the class does not know.
    """
    try:
        model.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
    else:
        return
    hidden = _hidden(model, values)
    by_path: dict[ValuePath, list[str]] = {}
    for detail in details:
        path = _data_path(detail, values)
        shown = WITHHELD if _may_leak(detail, path, hidden) else _words(detail, model, what)
        by_path.setdefault(path, []).append(shown)
    for path, alternatives in by_path.items():
        # A union is wrong in each of its forms; the deepest wrong place tells most.
        if not any(_is_below(other, path) for other in by_path):
            yield Fault(dotted(*where, *path), ", or: ".join(dict.fromkeys(alternatives)))


def _data_path(detail: ErrorDetails, values: JsonValue) -> ValuePath:
    # pydantic's locations also name union members and validators; a path holds only what is in the file.
    path: list[str | int] = []
    for part in detail["loc"]:
        if _has(values, part):
            values = values[part]
            path.append(part)
    if detail["type"] == "missing":
        path.append(detail["loc"][-1])
    return tuple(path)


def _has(values: JsonValue, part: str | int) -> bool:
    if isinstance(values, dict):
        return part in values
    return isinstance(values, list) and isinstance(part, int) and part < len(values)


def _hidden(model: type[BaseModel], values: JsonValue) -> dict[ValuePath, str]:
    secrets = secret_paths(model, values) if isinstance(values, dict) else set()
    return {
        path: text
        for path, text in texts(values)
        if isinstance(text, Expanded) or any(path == secret or _is_below(path, secret) for secret in secrets)
    }


def _may_leak(detail: ErrorDetails, path: ValuePath, hidden: dict[ValuePath, str]) -> bool:
    if detail["type"] in _OWN_WORDS and not {"error", "tag"} & detail.get("ctx", {}).keys():
        return False
    return any(
        place == path or _is_below(place, path) or (text and text in detail["msg"]) for place, text in hidden.items()
    )


def _is_below(path: ValuePath, parent: ValuePath) -> bool:
    return len(path) > len(parent) and path[: len(parent)] == parent


def _words(detail: ErrorDetails, model: type[BaseModel], what: str) -> str:
    if detail["type"] == "missing":
        return "required"
    if detail["type"] in ("model_type", "dict_type"):
        return "must be a mapping"
    if detail["type"] != "extra_forbidden":
        return detail["msg"]
    known = model.model_fields if len(detail["loc"]) == 1 else ()
    return f"unknown {what}{did_you_mean(str(detail['loc'][-1]), known)}"
