"""The one place where untyped JSON enters.

Rows, Responses requests and Responses objects are open: environments add fields, engines add fields, and all of
them travel on unchanged. They are therefore plain JSON objects, named here once; everything of Rollmill's own
control plane is a strict model instead.
"""

from typing import Any, TypeAlias

import orjson

JsonValue: TypeAlias = Any  # null, bool, number, string, list or object, as orjson decodes them
JsonObject: TypeAlias = dict[str, Any]


def dumps(value: JsonValue) -> bytes:
    """Serialise to compact JSON bytes; numpy scalars and arrays are allowed.

    Raises:
        TypeError: the value holds something that JSON cannot express.
    """
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def loads(data: bytes | str) -> JsonValue:
    """Parse JSON text.

    Raises:
        ValueError: the text is not JSON (`orjson.JSONDecodeError`).
    """
    return orjson.loads(data)


def canonical(value: JsonValue) -> bytes:
    """Serialise with sorted keys, so that equal values have equal bytes (for digests and lookups)."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
