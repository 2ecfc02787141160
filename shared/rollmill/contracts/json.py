"""The one place where untyped JSON enters.

Rows, Responses requests and Responses objects are open: environments add fields, engines add fields, and all of
them travel on unchanged. They are therefore plain JSON objects, named here once; everything of Rollmill's own
control plane is a strict model instead.
"""

from typing import Any, Final, TypeAlias

import orjson

JsonValue: TypeAlias = Any  # null, bool, number, string, list or object, as orjson decodes them
JsonObject: TypeAlias = dict[str, Any]


MAX_DEPTH: Final = 254
"""Deepest nesting that is written. `loads` reads four times as much, so what was sent to us may be deeper."""


class NestingError(TypeError):
    """A value is nested too deeply to be written."""

    def __init__(self) -> None:
        super().__init__(f"nested more than {MAX_DEPTH} levels deep")


def dumps(value: JsonValue) -> bytes:
    """Serialise to compact JSON bytes; numpy scalars and arrays are allowed.

    Raises:
        NestingError: the value is nested more than 254 levels deep.
        TypeError: the value holds something that JSON cannot express.
    """
    return _written(value, orjson.OPT_SERIALIZE_NUMPY)


def loads(data: bytes | str) -> JsonValue:
    """Parse JSON text.

    Raises:
        ValueError: the text is not JSON (`orjson.JSONDecodeError`).
    """
    return orjson.loads(data)


def canonical(value: JsonValue) -> bytes:
    """Serialise with sorted keys, so that equal values have equal bytes (for digests and lookups).

    Raises:
        NestingError: as `dumps`.
    """
    return _written(value, orjson.OPT_SORT_KEYS)


def _written(value: JsonValue, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError as error:
        if str(error) == "Recursion limit reached":
            raise NestingError from None
        raise
