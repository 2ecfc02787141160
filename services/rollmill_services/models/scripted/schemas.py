from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.openai.items import as_object

_MOST_MERGES = 64
_CONCATENATED = ("required", "allOf")


def flattened(schema: JsonValue, root: JsonObject) -> JsonObject:
    """Return a JSON schema with its `$ref`, all of `allOf`, and one choice of `anyOf` and `oneOf` merged into it.

    The choice is the first that is not null. A schema that only leads back to itself stays as far as it got.

    Args:
        schema: any part of the root; what is no object allows everything.
        root: the whole schema, in which references are looked up.
    """
    flat = as_object(schema)
    for _ in range(_MOST_MERGES):
        if "$ref" in flat:
            flat = _merged(_without(flat, "$ref"), _referenced(str(flat["$ref"]), root))
        elif parts := _list(flat, "allOf"):
            flat = _merged({**flat, "allOf": parts[1:]}, as_object(parts[0]))
        elif keyword := next((key for key in ("anyOf", "oneOf") if _list(flat, key)), None):
            flat = _merged(_without(flat, keyword), _first_useful(flat[keyword]))
        else:
            break
    return flat


def schema_type(schema: JsonObject) -> str:
    """Return the type of a flat schema, not null where there is a choice; guessed when it names none."""
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "array" if "items" in schema else "string"


def required_properties(schema: JsonObject) -> dict[str, JsonValue]:
    """Return the schemas of the required properties of a flat schema, by name."""
    properties = as_object(schema.get("properties"))
    return {name: properties.get(name) for name in _list(schema, "required") if isinstance(name, str)}


def size_limit(schema: JsonObject, keyword: str, default: int, *, most: int) -> int:
    """Return a length that the schema gives, such as `minItems`, between 0 and `most`."""
    value = schema.get(keyword)
    return min(max(value, 0), most) if isinstance(value, int) else default


def _referenced(reference: str, root: JsonObject) -> JsonObject:
    found: JsonValue = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = as_object(found).get(part.replace("~1", "/").replace("~0", "~"))
    return as_object(found)


def _first_useful(choices: list[JsonValue]) -> JsonObject:
    return next((choice for choice in map(as_object, choices) if choice.get("type") != "null"), {"type": "null"})


def _merged(base: JsonObject, part: JsonObject) -> JsonObject:
    merged = {**part, **base}
    merged |= {key: [*_list(part, key), *_list(base, key)] for key in _CONCATENATED if key in merged}
    if "properties" in merged:
        merged["properties"] = as_object(part.get("properties")) | as_object(base.get("properties"))
    return merged


def _list(schema: JsonObject, keyword: str) -> list[JsonValue]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _without(schema: JsonObject, keyword: str) -> JsonObject:
    return {key: member for key, member in schema.items() if key != keyword}
