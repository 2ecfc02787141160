"""What a resources server says of itself: its kind, how it grades, and its tools."""

import re
from collections.abc import Iterator
from typing import Final

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.server.tools import RESERVED_NAMES

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what the OpenAI API and the engines accept
_TYPES: Final = {"string", "number", "integer", "boolean", "object", "array", "null"}
_MODES: Final = ("stateless", "unsupported", "unknown")
_DEEPEST: Final = 32


def description_faults(description: JsonValue, mode: JsonValue) -> Iterator[str]:
    """Yield what is wrong with the answers of `/version` and `/reverify_mode`."""
    if not isinstance(description, dict) or not isinstance(description.get("capabilities"), dict):
        yield "GET /version gives no object with `capabilities`"
        return
    if description.get("kind") != "resources":
        yield f"GET /version gives the kind {description.get('kind')!r}, not 'resources'"
    if mode not in _MODES:
        yield f"GET /reverify_mode gives {mode!r}, not one of {', '.join(_MODES)}"
    elif description["capabilities"].get("reverify_mode") != mode:
        yield f"`capabilities.reverify_mode` is not the {mode!r} of GET /reverify_mode"


def tool_faults(tool: JsonValue) -> Iterator[str]:
    """Yield what is wrong with the definition of a tool, for the engines that are given it and for the model."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        yield f"a tool's name must match {_TOOL_NAME.pattern}, got {name!r}"
        return
    if name in RESERVED_NAMES:
        yield f"{name}: the name is one of the protocol's own endpoints"
    if tool.get("type") != "function":
        yield f"{name}: `type` must be 'function'"
    if not str(tool.get("description") or "").strip():
        yield f"{name}: no description, so no model knows what it is for (the docstring of the method)"
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        yield f"{name}: `parameters` must be a JSON schema of type 'object'"
        return
    for fault in _schema_faults(parameters, "parameters"):
        yield f"{name}: {fault}"


def _schema_faults(schema: JsonValue, where: str, depth: int = 0) -> Iterator[str]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict) or depth > _DEEPEST:
        yield f"{where} is not a JSON schema"
        return
    given = schema.get("type", [])
    if unknown := [t for t in (given if isinstance(given, list) else [given]) if t not in _TYPES]:
        yield f"{where}: the type {unknown[0]!r} does not exist"
    yield from _required_faults(schema, where)
    for place, inner in _inner_schemas(schema):
        yield from _schema_faults(inner, f"{where}.{place}", depth + 1)


def _required_faults(schema: JsonObject, where: str) -> Iterator[str]:
    required, properties = schema.get("required", []), schema.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict):
        yield f"{where}: `required` must be a list, and `properties` an object"
    elif unknown := [name for name in required if name not in properties]:
        yield f"{where}: {unknown[0]!r} is required, but no property"


def _inner_schemas(schema: JsonObject) -> Iterator[tuple[str, JsonValue]]:
    for keyword in ("properties", "$defs", "definitions"):
        if isinstance(named := schema.get(keyword), dict):
            yield from named.items()
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(several := schema.get(keyword), list):
            yield from ((f"{keyword}.{index}", inner) for index, inner in enumerate(several))
    for keyword in ("items", "additionalProperties"):
        if keyword in schema and not isinstance(schema[keyword], list):
            yield keyword, schema[keyword]
