from collections.abc import Sequence

import msgspec
from msgspec import Raw

from rollmill.artifacts.chunks import Chunk, coded, ints
from rollmill.artifacts.output_items import NOTHING
from rollmill.artifacts.rollout_rows import AgentNames, are_indices, checked_key, checked_row
from rollmill.artifacts.rollout_shape import check_text
from rollmill.contracts.json import JsonValue
from rollmill.contracts.rows import AGENT_REF, ROLLOUT_INDEX, TASK_INDEX, RowKey, agent_name


class _Keys(msgspec.Struct):
    task: JsonValue = msgspec.field(default=None, name=TASK_INDEX)
    rollout: JsonValue = msgspec.field(default=None, name=ROLLOUT_INDEX)
    agent: Raw = msgspec.field(default=NOTHING, name=AGENT_REF)


class InputLines:
    """Turns lines of materialized input rows into chunks of keys, agents and offsets."""

    def __init__(self) -> None:
        self._decoder: msgspec.json.Decoder[_Keys] = msgspec.json.Decoder(_Keys)
        self._names = AgentNames()

    def chunk(self, lines: Sequence[bytes], offsets: Sequence[int]) -> Chunk:
        """Return the columns of lines, none of them blank, that begin at the offsets. Its `end` is not set."""
        try:
            check_text(lines)
            rows = list(map(self._decoder.decode, lines))
        except (msgspec.MsgspecError, ValueError):
            return _chunk_of_rows(lines, offsets)
        tasks, rollouts = [row.task for row in rows], [row.rollout for row in rows]
        if not are_indices(tasks) or not are_indices(rollouts):
            return _chunk_of_rows(lines, offsets)
        agents = coded(self._names.of(row.agent) for row in rows)
        return Chunk(count=len(lines), tasks=ints(tasks), rollouts=ints(rollouts), offsets=ints(offsets), agents=agents)


def _chunk_of_rows(lines: Sequence[bytes], offsets: Sequence[int]) -> Chunk:
    keys: list[RowKey] = []
    agents: list[str | None] = []
    fault = None
    for line, offset in zip(lines, offsets, strict=True):
        try:
            row = checked_row(line)
            keys.append(checked_key(row))
        except ValueError as error:
            fault = offset, str(error)
            break
        agents.append(agent_name(row))
    return Chunk(
        count=len(keys),
        tasks=ints(key.task for key in keys),
        rollouts=ints(key.rollout for key in keys),
        offsets=ints(offsets[: len(keys)]),
        agents=coded(agents),
        fault=fault,
    )
