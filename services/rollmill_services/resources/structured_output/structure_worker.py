"""Worker program that reads an answer and validates it: schemas and answers can both be made to take for ever.

Request: `{"schema", "language", "answer", "key", "fenced", "limit_seconds"}`; without an answer only the schema is
checked. Answer: `{"parsed": JSON text, or null when it is long}`, or `{"error_type", "error_message"}` with the type
`schema_wrong`, `parse` or `validation`.
"""

import json

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.grading.serving import serve
from rollmill.grading.text import without_surrogates
from rollmill_services.resources.structured_output.reading import read, unfenced, unwrapped
from rollmill_services.resources.structured_output.strict import strict_schema

_LONGEST_MESSAGE = 500
_LONGEST_PARSED = 100_000  # aliases of YAML can make much of a short answer


def answer(request: JsonObject) -> JsonObject:
    """Answer one request."""
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(request["schema"])
        schema = strict_schema(request["schema"])
    except (SchemaError, RecursionError) as error:
        return _error("schema_wrong", str(getattr(error, "message", "")) or "it is nested too deeply")
    return {"parsed": ""} if request["answer"] is None else _graded(schema, request)


def _graded(schema: JsonValue, request: JsonObject) -> JsonObject:
    text = request["answer"]
    try:
        value = read(unfenced(text) if request["fenced"] else text, request["language"], schema)
        value = value if request["key"] is None else unwrapped(value, request["key"])
    except (ValueError, LookupError, RecursionError, MemoryError) as error:
        return _error("parse", str(error) or type(error).__name__)
    return _validated(value, schema)


def _validated(value: JsonValue, schema: JsonValue) -> JsonObject:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    validator = Draft202012Validator(schema, registry=Registry())  # an empty one: references never leave the schema
    try:
        fault = best_match(validator.iter_errors(value))
        parsed = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except Unresolvable as error:
        return _error("schema_wrong", f"a reference leads nowhere: {error}")
    except (RecursionError, MemoryError, OverflowError, ValueError) as error:
        return _error("validation", str(error) or type(error).__name__)
    if fault is not None:
        return _error("validation", f"{fault.json_path}: {fault.message}")
    return {"parsed": without_surrogates(parsed) if len(parsed) <= _LONGEST_PARSED else None}


def _error(kind: str, message: str) -> JsonObject:
    return {"error_type": kind, "error_message": without_surrogates(message[:_LONGEST_MESSAGE])}


if __name__ == "__main__":
    answer({"schema": {}, "answer": "1", "language": "json", "key": None, "fenced": False})  # imports take their time
    serve(answer)
