"""XML and CSV know only texts: what a text means depends on the schema."""

import json
import re

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill_services.resources.structured_output.strict import referenced

_WHOLE = re.compile(r"[-+]?\d{1,400}")
_NUMBER = re.compile(r"[-+]?(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][-+]?\d{1,3})?")
_BOOLEANS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


def typed(value: JsonValue, schema: JsonValue, root: JsonValue) -> JsonValue:
    """Return a value of texts, lists and objects with its texts turned into what the schema wants there.

    A text that cannot be turned stays a text, for the validation to refuse.
    """
    flat = useful(schema, root)
    if isinstance(value, list):
        return [typed(member, flat.get("items"), root) for member in value]
    if isinstance(value, dict):
        return {name: typed(member, member_schema(flat, name), root) for name, member in value.items()}
    return _scalar(value, flat) if isinstance(value, str) else value


def useful(schema: JsonValue, root: JsonValue) -> JsonObject:
    """Return what a schema refers to, or the first choice of it that is not null, with the types of all of them."""
    flat = referenced(schema, root)
    choices = (
        [choice for key in ("anyOf", "oneOf") for choice in (flat.get(key) or [])] if isinstance(flat, dict) else []
    )
    if not choices:
        return flat if isinstance(flat, dict) else {}
    made = [useful(choice, root) for choice in choices]
    best = next((choice for choice in made if choice.get("type") != "null"), {})
    return {**best, "type": [name for choice in made for name in types(choice)]}


def types(schema: JsonObject) -> list[str]:
    """Return the names of the types that a schema allows; none when it does not say."""
    named = schema.get("type", [])
    return [str(name) for name in named] if isinstance(named, list) else [str(named)]


def member_schema(schema: JsonObject, name: str) -> JsonValue:
    """Return the schema of one property."""
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, dict) else {}


def _scalar(text: str, schema: JsonObject) -> JsonValue:
    allowed, bare = types(schema), text.strip()
    if "null" in allowed and bare in ("", "null"):
        return None
    if "integer" in allowed and _WHOLE.fullmatch(bare):
        return int(bare)
    if "number" in allowed and _NUMBER.fullmatch(bare):
        return int(bare) if _WHOLE.fullmatch(bare) else float(bare)
    if "boolean" in allowed and bare in _BOOLEANS:
        return _BOOLEANS[bare]
    if "string" not in allowed and ("array" in allowed or "object" in allowed):
        return _nested(bare)
    return text


def _nested(text: str) -> JsonValue:
    """Read a list or an object that a cell holds as JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
