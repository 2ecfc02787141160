"""Takes the columns out of whole rollout rows: the definition, which `rollout_lines` gives faster."""

import json
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from rollmill.artifacts.chunks import Chunk, Field, answer_text, are_exact_ints, coded, floats, ints
from rollmill.artifacts.output_items import loose_items, steps
from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rows import AGENT_REF, RESPONSE, REWARD, TIMING, Row, RowKey, agent_name, row_key
from rollmill.metrics.numeric import is_number, numeric_fields, usage_of

ANSWER_FIELD = "extracted_answer"
"""Where answers are unless an environment says otherwise."""

LARGEST_INDEX = 2**63 - 1


class AnswerFields(msgspec.Struct, frozen=True):
    """The field that holds the answer, by agent; agents that are not listed have the default one."""

    by_agent: dict[str, str | None] = msgspec.field(default_factory=dict)

    def of(self, agent: str | None) -> str | None:
        """Return the field of an agent; None when its rollouts have no answers."""
        return self.by_agent.get(agent or "", ANSWER_FIELD)

    def names(self) -> list[str]:
        """Return every field that may hold an answer."""
        return sorted({ANSWER_FIELD, *(name for name in self.by_agent.values() if name)})


class AgentNames:
    """Reads the agent out of `agent_ref`, each distinct one only once."""

    def __init__(self) -> None:
        self._names: dict[bytes, str | None] = {}

    def of(self, ref: Raw) -> str | None:
        """Return the agent's name; None when there is none."""
        text = bytes(ref)
        if text not in self._names:
            self._names[text] = agent_name({AGENT_REF: loads(text)})
        return self._names[text]


def are_indices(column: Sequence[JsonValue]) -> bool:
    """Say whether all values, of which there is at least one, are task or rollout indices."""
    return set(map(type, column)) == {int} and 0 <= min(column) <= max(column) <= LARGEST_INDEX


def chunk_of_rows(lines: Sequence[bytes], offsets: Sequence[int], answers: AnswerFields) -> Chunk:
    """Return the columns of lines up to the first that is no rollout. Its `end` is not set.

    A rollout whose reward is not a finite number is left out, and counted as refused.
    """
    chunk = Chunk()
    rows: list[Row] = []
    kept: list[int] = []
    for line, offset in zip(lines, offsets, strict=True):
        try:
            row = _row(line)
            key = checked_key(row)
        except ValueError as error:
            chunk.fault = offset, str(error)
            break
        if _is_refused(row.get(REWARD)):
            chunk.refused.append(str(key))
        else:
            rows.append(row)
            kept.append(offset)
    _fill(chunk, rows, answers)
    chunk.offsets = ints(kept)
    return chunk


def _fill(chunk: Chunk, rows: Sequence[Row], answers: AnswerFields) -> None:
    keys, agents = list(map(row_key, rows)), list(map(agent_name, rows))
    responses = list(map(_response, rows))
    found = [steps(loose_items(response.get("output"))) for response in responses]
    chunk.count = len(rows)
    chunk.tasks = ints(key.task for key in keys)
    chunk.rollouts = ints(key.rollout for key in keys)
    chunk.agents = coded(agents)
    chunk.answers = coded(
        answer_text(row.get(answers.of(agent) or "")) for row, agent in zip(rows, agents, strict=True)
    )
    chunk.truncated = bytes(response.get("incomplete_details") is not None for response in responses)
    chunk.turns = floats([turns for turns, _ in found])
    chunk.tool_errors = floats([errors for _, errors in found])
    chunk.seconds = floats([_seconds(row.get(TIMING)) for row in rows])
    chunk.fields = _fields(rows)


def _response(row: Row) -> JsonObject:
    response = row.get(RESPONSE)
    return response if isinstance(response, dict) else {}


def _fields(rows: Sequence[Row]) -> list[Field]:
    numbers = list(map(numeric_fields, rows))
    usage = {name for row in rows for name, value in usage_of(row).items() if is_number(value)}
    columns = {
        name: [row.get(name) for row in numbers] for name in dict.fromkeys(name for row in numbers for name in row)
    }
    return [Field(name, floats(column), are_exact_ints(column), name in usage) for name, column in columns.items()]


def _row(line: bytes) -> Row:
    try:
        return checked_row(line)
    except ValueError:
        row = _with_infinities(line)
        if row is None:
            raise
        return row


def _with_infinities(line: bytes) -> Row | None:
    """Read a line that is JSON but for a reward of NaN or Infinity, as Python writes them; else return None."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and _is_refused(row.get(REWARD)) else None


def checked_row(line: bytes) -> Row:
    """Parse a line.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        row = loads(line)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError(f"a row must be a JSON object, got {type(row).__name__}")
    return row


def checked_key(row: Row) -> RowKey:
    """Return the key of a row.

    Raises:
        ValueError: an index is missing, or out of range.
    """
    key = row_key(row)
    if max(key) > LARGEST_INDEX:
        raise ValueError(f"an index is larger than {LARGEST_INDEX}: {key}")
    return key


def _is_refused(reward: JsonValue) -> bool:
    return isinstance(reward, int | float) and not is_number(reward)


def _seconds(timing: JsonValue) -> JsonValue:
    return timing.get("seconds") if isinstance(timing, dict) else None
