"""Columns of a stretch of rollouts as plain bytes, so that a reading process can hand them on as they are."""

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from math import nan

import msgspec

from rollmill.contracts.json import JsonValue, canonical

ANSWER_CHARACTERS = 200
"""A longer answer is kept as its hash."""

_NUMBERS = (int, float)  # a tuple tests faster than a union, and this runs for every field of every rollout
_LARGEST_EXACT = 2**53  # a double holds every int up to here


class Field(msgspec.Struct, array_like=True):
    """A numeric field."""

    name: str
    values: bytes
    """float64, NaN where a rollout lacks the field."""
    integer: bool
    """Every value is an int or a boolean that a double holds exactly."""
    usage: bool
    """`response.usage` gave it."""


class Coded(msgspec.Struct, array_like=True):
    """A column of texts that repeat."""

    codes: bytes = b""
    """int32, -1 for none."""
    names: list[str] = msgspec.field(default_factory=list)


class Chunk(msgspec.Struct, array_like=True):
    """The columns of consecutive lines, in the order of the lines. Of input rows, only keys, offsets and agents."""

    count: int = 0
    """Rollouts."""
    end: int = 0
    """Offset in the file after the last line."""
    tasks: bytes = b""
    """int64, as are `rollouts` and `offsets`."""
    rollouts: bytes = b""
    offsets: bytes = b""
    """Where in the file the lines begin."""
    agents: Coded = msgspec.field(default_factory=Coded)
    answers: Coded = msgspec.field(default_factory=Coded)
    truncated: bytes = b""
    """One byte each, 0 or 1."""
    turns: bytes = b""
    """float64, as are `tool_errors` and `seconds`."""
    tool_errors: bytes = b""
    seconds: bytes = b""
    fields: list[Field] = msgspec.field(default_factory=list)
    refused: list[str] = msgspec.field(default_factory=list)
    """Keys of rollouts that were left out because their reward is not a finite number."""
    fault: tuple[int, str] | None = None
    """Offset of a line that is wrong, and why; nothing after it was read."""


def ints(values: Iterable[int]) -> bytes:
    """Return ints as int64."""
    return array("q", values).tobytes()


def floats(values: Sequence[JsonValue]) -> bytes:
    """Return numbers and booleans as float64, NaN for everything else.

    Raises:
        OverflowError: an int is beyond the range of doubles.
    """
    if set(map(type, values)) <= {int, float, bool}:
        return array("d", values).tobytes()
    return array("d", (value if isinstance(value, _NUMBERS) else nan for value in values)).tobytes()


def are_exact_ints(values: Sequence[JsonValue]) -> bool:
    """Say whether all numbers among the values are ints, or booleans, that a double holds exactly."""
    kinds = set(map(type, values))
    if float in kinds:
        return False
    numbers = values if kinds <= {int, bool} else [value for value in values if isinstance(value, int)]
    return not numbers or -_LARGEST_EXACT <= min(numbers) <= max(numbers) <= _LARGEST_EXACT


def coded(values: Iterable[str | None]) -> Coded:
    """Return a column of texts that repeat."""
    codes: dict[str, int] = {}
    column = array("i", (-1 if value is None else codes.setdefault(value, len(codes)) for value in values))
    return Coded(column.tobytes(), list(codes))


def answer_text(value: JsonValue) -> str | None:
    """Return what stands for an answer: its text, or a hash of a long one; None when there is none.

    Text is taken as it is, anything else as JSON. Missing, null and empty text are no answer.
    """
    if value is None or value == "":
        return None
    text = value if isinstance(value, str) else canonical(value).decode()
    if len(text) <= ANSWER_CHARACTERS:
        return text
    return "#" + blake2b(text.encode(), digest_size=8).hexdigest()
