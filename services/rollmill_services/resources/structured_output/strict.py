"""The strict form of a JSON schema: every property that it names is required, and none may be added."""

from rollmill.contracts.json import JsonObject, JsonValue

_BRANCHES = ("allOf", "anyOf", "oneOf")  # each describes the same value as the schema around it
_CONDITIONS = ("then", "else", "dependentSchemas")
_PLACES = ("items", "contains", "additionalItems", "additionalProperties")  # each describes another value
_NAMED_PLACES = ("properties", "patternProperties")
_DEFINITIONS = ("$defs", "definitions")
_MOST_REFERENCES = 32


def strict_schema(schema: JsonValue) -> JsonValue:
    """Return the schema with all named properties required and further ones forbidden, at every depth.

    Properties are closed where a value is described as a whole: the branches of `allOf`, `anyOf`, `oneOf` and what a
    `$ref` leads to may each name a part of them. An object without named properties stays open.

    Raises:
        RecursionError: it is nested too deeply.
    """
    return _strict(schema, schema, whole=True)


def referenced(schema: JsonValue, root: JsonValue) -> JsonValue:
    """Follow a schema's `$ref` into the same document; the schema itself when it has none."""
    for _ in range(_MOST_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = _at(root, reference)
    return {}


def _strict(schema: JsonValue, root: JsonValue, *, whole: bool) -> JsonValue:
    if not isinstance(schema, dict):
        return schema
    made: JsonObject = {key: _member(key, member, root) for key, member in schema.items()}
    properties = schema.get("properties")
    if isinstance(properties, dict):
        made["required"] = list(properties)
    if whole and _names_properties(schema, root, _MOST_REFERENCES):
        made.pop("additionalProperties", None)
        made["unevaluatedProperties"] = False
    return made


def _member(key: str, member: JsonValue, root: JsonValue) -> JsonValue:
    if key in _BRANCHES and isinstance(member, list):
        return [_strict(branch, root, whole=False) for branch in member]
    if key in _CONDITIONS:
        return _strict(member, root, whole=False)
    if key in _PLACES:
        return _strict(member, root, whole=True)
    if key == "prefixItems" and isinstance(member, list):
        return [_strict(place, root, whole=True) for place in member]
    if (key in _NAMED_PLACES or key in _DEFINITIONS) and isinstance(member, dict):
        return {name: _strict(part, root, whole=key in _NAMED_PLACES) for name, part in member.items()}
    return member


def _names_properties(schema: JsonValue, root: JsonValue, most: int) -> bool:
    if not isinstance(schema, dict) or most <= 0:
        return False
    if isinstance(schema.get("properties"), dict):
        return True
    branches = [branch for key in _BRANCHES for branch in schema.get(key, []) if isinstance(schema.get(key), list)]
    if "$ref" in schema:
        branches.append(_at(root, str(schema["$ref"])))
    return any(_names_properties(branch, root, most - 1) for branch in branches)


def _at(root: JsonValue, reference: str) -> JsonValue:
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found
