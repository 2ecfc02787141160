"""From the text of an answer to a JSON value, in each of the languages."""

import csv
import io
import json
import math
import re
import tomllib
from collections.abc import Callable
from datetime import date, time
from typing import NoReturn

from rollmill.contracts.json import JsonValue
from rollmill_services.resources.structured_output.text_values import typed, useful
from rollmill_services.resources.structured_output.xml_values import xml_value

_FENCED = re.compile(r"\s*```[ \t]*[\w+-]*[ \t]*\n(?P<inner>.*)\n[ \t]*```\s*", re.DOTALL)


def read(text: str, language: str, schema: JsonValue) -> JsonValue:
    """Read an answer as a JSON value.

    Args:
        text: the whole answer.
        language: one of `LANGUAGES`.
        schema: says of what type the texts of XML and CSV are.

    Raises:
        ValueError: the text is not in that language.
        RecursionError: it is nested too deeply.
    """
    return LANGUAGES[language](text, schema)


def unwrapped(value: JsonValue, key: str) -> JsonValue:
    """Return what an object has under its only key.

    Raises:
        ValueError: it is no object, or has other keys.
    """
    if not isinstance(value, dict) or list(value) != [key]:
        raise ValueError(f"not an object with {key!r} alone")
    return value[key]


def unfenced(text: str) -> str:
    """Return what stands in a fenced block that is the whole answer; else the answer."""
    fenced = _FENCED.fullmatch(text)
    return fenced["inner"] if fenced and "```" not in fenced["inner"] else text


def _json(text: str, schema: JsonValue) -> JsonValue:
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def _toml(text: str, schema: JsonValue) -> JsonValue:
    return plain(tomllib.loads(text))


def _yaml(text: str, schema: JsonValue) -> JsonValue:
    import yaml

    from rollmill_services.resources.structured_output.yaml_core import CoreLoader

    try:
        return plain(yaml.load(text, Loader=CoreLoader))  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def _csv(text: str, schema: JsonValue) -> JsonValue:
    """Read a header and rows; each row is an object. Where the schema wants one object, there must be one row."""
    try:
        header, *rows = [row for row in csv.reader(io.StringIO(text.strip()), strict=True) if row]
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if len(set(header)) < len(header):
        raise ValueError("two columns have the same name")
    if uneven := next((nth for nth, row in enumerate(rows, start=2) if len(row) != len(header)), None):
        raise ValueError(f"row {uneven} has another number of cells than the header")
    if not rows and set(header) != _columns(schema):  # any line of prose is a header, and no rows fit most schemas
        raise ValueError("there is only a header, and it does not name the columns of the schema")
    records = [dict(zip(header, row, strict=True)) for row in rows]
    wanted = schema if isinstance(schema, dict) else {}
    if wanted.get("type") != "object":
        return typed(records, schema, schema)
    if len(records) != 1:
        raise ValueError(f"the schema wants one object, and there are {len(records)} rows")
    return typed(records[0], schema, schema)


def _columns(schema: JsonValue) -> set[str]:
    """Return the properties that the schema of a list names for its members."""
    member = useful(useful(schema, schema).get("items"), schema)
    return set(member.get("properties") or {})


def plain(value: JsonValue) -> JsonValue:
    """Return a value as JSON has it: dates as text, keys as text, and no number that is not finite.

    Raises:
        ValueError: it holds something that JSON cannot express.
    """
    if isinstance(value, dict):
        return {_key(key): plain(member) for key, member in value.items()}
    if isinstance(value, list):
        return [plain(member) for member in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number of JSON")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{type(value).__name__} is no type of JSON")


def _key(key: JsonValue) -> str:
    return key if isinstance(key, str) else json.dumps(plain(key))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)


LANGUAGES: dict[str, Callable[[str, JsonValue], JsonValue]] = {
    "json": _json,
    "yaml": _yaml,
    "xml": xml_value,
    "toml": _toml,
    "csv": _csv,
}
