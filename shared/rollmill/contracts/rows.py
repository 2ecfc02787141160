"""Rows: the open JSON objects that travel through `/run` and `/verify` and end as lines in files."""

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from rollmill.contracts.json import JsonObject, JsonValue

Row: TypeAlias = JsonObject

TASK_INDEX = "_ng_task_index"
ROLLOUT_INDEX = "_ng_rollout_index"
ATTEMPT_INDEX = "_ng_attempt_index"
FAILURE_CLASS = "_ng_failure_class"
FAILURE_TERMINAL = "_ng_failure_terminal"
NO_PERSIST = "_ng_no_persist"
AGENT_REF = "agent_ref"
PARAMS = "responses_create_params"
RESPONSE = "response"
REWARD = "reward"
COMPONENTS = "reward_components"
TIMING = "_rollmill"
"""What the collector adds to a finished rollout: `seconds` that the attempt took, `started_at`, and its number."""


class RowKey(NamedTuple):
    """Identity of a rollout within a run."""

    task: int
    rollout: int

    def __str__(self) -> str:
        return f"{self.task}:{self.rollout}"


def row_key(row: Row) -> RowKey:
    """Return the key of a row.

    Raises:
        ValueError: an index is missing or not an integer >= 0.
    """
    return RowKey(_index(row, TASK_INDEX), _index(row, ROLLOUT_INDEX))


def _index(row: Row, field: str) -> int:
    value = row.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{field} must be an integer >= 0, got {value!r}")
    return value


def agent_name(row: Row) -> str | None:
    """Return the name in `agent_ref`, or None when the row names no agent."""
    ref = row.get(AGENT_REF)
    name = ref.get("name") if isinstance(ref, dict) else None
    return name if isinstance(name, str) and name else None


def field(row: Row, name: str, default: JsonValue = None) -> JsonValue:
    """Read an environment's field from the row's top level, or else from its `verifier_metadata`."""
    if name in row:
        return row[name]
    metadata = row.get("verifier_metadata")
    return metadata.get(name, default) if isinstance(metadata, dict) else default


def valid_reward(value: JsonValue) -> bool:
    """Say whether a reward may be written: a finite int or float (booleans count as 0 and 1)."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def assistant_texts(response: JsonObject) -> Iterator[str]:
    """Yield the text of each assistant message of a Responses object, in order."""
    output = response.get("output")
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict) or item.get("type", "message") != "message":
            continue
        if item.get("role", "assistant") != "assistant":
            continue
        yield content_text(item.get("content"))


def answer_text(response: JsonObject) -> str:
    """Return the answer text: the text of all assistant messages, joined by newlines."""
    return "\n".join(assistant_texts(response))


def content_text(content: JsonValue) -> str:
    """Return the text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "".join(text for text in texts if isinstance(text, str))


def tokens_used(row: Row) -> int:
    """Return the tokens that the `usage` of a row's response tells, input and output together; 0 when it tells none."""
    response = row.get(RESPONSE)
    usage = response.get("usage") if isinstance(response, dict) else None
    if not isinstance(usage, dict):
        return 0
    if usage.get("total_tokens") is not None:
        return _count(usage["total_tokens"])
    return _count(usage.get("input_tokens")) + _count(usage.get("output_tokens"))


def _count(value: JsonValue) -> int:
    return max(value, 0) if isinstance(value, int) else 0


def light_row(row: Row) -> Row:
    """Return the row without its heavy fields, as `/aggregate_metrics` takes it: `response.usage` is kept."""
    light = {key: value for key, value in row.items() if key not in (PARAMS, RESPONSE)}
    response = row.get(RESPONSE)
    if isinstance(response, dict):
        light[RESPONSE] = {"usage": response.get("usage")}
    return light
