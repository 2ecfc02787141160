"""The columns of a run's rollouts as arrays. This module imports numpy: import it inside functions, not at start-up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rollmill.artifacts.chunks import Chunk

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int32]
Flags: TypeAlias = NDArray[np.bool_]


@dataclass(slots=True)
class Texts:
    """A column of texts that repeat."""

    codes: Codes
    """Positions in `names`, -1 for none."""
    names: list[str]


@dataclass(slots=True)
class Columns:
    """Rollouts, one entry of every array for each, in the order of their lines."""

    tasks: Ints
    rollouts: Ints
    offsets: Ints
    """Where in the file their lines begin."""
    agents: Texts
    answers: Texts
    truncated: Flags
    turns: Floats
    """NaN where the output is unknown, as in `tool_errors`."""
    tool_errors: Floats
    seconds: Floats
    """NaN where it is unknown."""
    fields: dict[str, Floats] = field(default_factory=dict)
    """Numeric fields in order of first appearance; NaN where a rollout lacks one."""
    inexact: frozenset[str] = frozenset()
    """Fields of which some value was no int, or one that a double does not hold."""
    usage: frozenset[str] = frozenset()
    """Fields that `response.usage` gave."""
    refused: tuple[str, ...] = ()
    """Keys of rollouts that were left out because their reward is not a finite number."""
    end: int = 0
    """Offset in the file up to which it was read."""

    def __len__(self) -> int:
        return len(self.tasks)

    def only(self, chosen: Flags) -> "Columns":
        """Return some of the rollouts, with the fields that any of them has."""
        fields = {name: values[chosen] for name, values in self.fields.items()}
        return replace(
            self,
            tasks=self.tasks[chosen],
            rollouts=self.rollouts[chosen],
            offsets=self.offsets[chosen],
            agents=replace(self.agents, codes=self.agents.codes[chosen]),
            answers=replace(self.answers, codes=self.answers.codes[chosen]),
            truncated=self.truncated[chosen],
            turns=self.turns[chosen],
            tool_errors=self.tool_errors[chosen],
            seconds=self.seconds[chosen],
            fields={name: values for name, values in fields.items() if not np.isnan(values).all()},
        )

    def of_agent(self, name: str) -> "Columns":
        """Return the rollouts of an agent."""
        code = self.agents.names.index(name) if name in self.agents.names else -2
        return self.only(self.agents.codes == code)


def columns_of(chunk: Chunk) -> Columns:
    """Return the columns of a chunk as arrays; they share its memory."""
    return Columns(
        tasks=np.frombuffer(chunk.tasks, np.int64),
        rollouts=np.frombuffer(chunk.rollouts, np.int64),
        offsets=np.frombuffer(chunk.offsets, np.int64),
        agents=Texts(np.frombuffer(chunk.agents.codes, np.int32), chunk.agents.names),
        answers=Texts(np.frombuffer(chunk.answers.codes, np.int32), chunk.answers.names),
        truncated=np.frombuffer(chunk.truncated, np.bool_),
        turns=np.frombuffer(chunk.turns, np.float64),
        tool_errors=np.frombuffer(chunk.tool_errors, np.float64),
        seconds=np.frombuffer(chunk.seconds, np.float64),
        fields={column.name: np.frombuffer(column.values, np.float64) for column in chunk.fields},
        inexact=frozenset(column.name for column in chunk.fields if not column.integer),
        usage=frozenset(column.name for column in chunk.fields if column.usage),
        refused=tuple(chunk.refused),
        end=chunk.end,
    )


def joined(parts: Iterable[Columns]) -> Columns:
    """Return the columns of all parts, one after the other. The parts are used up: their fields are taken away."""
    parts = list(parts) or [columns_of(Chunk())]
    if len(parts) == 1:
        return parts[0]
    names = dict.fromkeys(name for part in parts for name in part.fields)
    sizes = [len(part) for part in parts]
    return Columns(
        tasks=np.concatenate([part.tasks for part in parts]),
        rollouts=np.concatenate([part.rollouts for part in parts]),
        offsets=np.concatenate([part.offsets for part in parts]),
        agents=_joined_texts([part.agents for part in parts]),
        answers=_joined_texts([part.answers for part in parts]),
        truncated=np.concatenate([part.truncated for part in parts]),
        turns=np.concatenate([part.turns for part in parts]),
        tool_errors=np.concatenate([part.tool_errors for part in parts]),
        seconds=np.concatenate([part.seconds for part in parts]),
        fields={name: _joined_field([part.fields.pop(name, None) for part in parts], sizes) for name in names},
        inexact=frozenset().union(*(part.inexact for part in parts)),
        usage=frozenset().union(*(part.usage for part in parts)),
        refused=tuple(key for part in parts for key in part.refused),
        end=parts[-1].end,
    )


def _joined_field(arrays: Sequence[Floats | None], sizes: Sequence[int]) -> Floats:
    whole = np.full(sum(sizes), np.nan)
    start = 0
    for array, size in zip(arrays, sizes, strict=True):
        if array is not None:
            whole[start : start + size] = array
        start += size
    return whole


def _joined_texts(columns: Sequence[Texts]) -> Texts:
    names: dict[str, int] = {}
    parts = []
    for column in columns:
        positions = [names.setdefault(name, len(names)) for name in column.names]
        parts.append(np.array([*positions, -1], np.int32)[column.codes])  # the code -1 takes the last one
    return Texts(np.concatenate(parts), list(names))
