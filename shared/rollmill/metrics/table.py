import math
from array import array
from typing import TYPE_CHECKING

from rollmill.contracts.rows import AGENT_REF, REWARD, ROLLOUT_INDEX, TASK_INDEX, Row, RowKey, agent_name, row_key
from rollmill.errors import InputError
from rollmill.metrics.numeric import is_number, numeric_fields, usage_of

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

KEYS = [TASK_INDEX, ROLLOUT_INDEX]
"""Columns that identify a rollout."""

_LARGEST_INDEX = 2**63 - 1
_LARGEST_EXACT = 2**53  # a double holds every int up to here
_NAN = array("d", [math.nan])


class KeyTable:
    """The keys and agents of rows as columns: 20 bytes a row.

    Args:
        noun: what a row is called in errors.
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._tasks = array("q")
        self._rollouts = array("q")
        self._agents = array("i")
        self._agent_codes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def check(self, row: Row) -> RowKey:
        """Return the key of a row.

        Raises:
            InputError: an index is missing or out of range; names the row by its position, from 1.
        """
        try:
            key = row_key(row)
        except ValueError as error:
            raise InputError(f"{self._noun} {len(self) + 1}: {error}") from None
        if max(key) > _LARGEST_INDEX:
            raise InputError(f"{self._noun} {len(self) + 1}: an index is larger than {_LARGEST_INDEX}: {key}")
        return key

    def add(self, key: RowKey, row: Row) -> None:
        """Append a row whose key was checked."""
        self._tasks.append(key.task)
        self._rollouts.append(key.rollout)
        name = agent_name(row)
        self._agents.append(-1 if name is None else self._agent_codes.setdefault(name, len(self._agent_codes)))

    def columns(self) -> dict[str, object]:
        """Return the task and rollout indices and the agent's name (missing where a row names none), as copies."""
        import numpy as np
        from pandas import Categorical, Index

        names = list(self._agent_codes)
        agents = Categorical.from_codes(np.array(self._agents, dtype=np.int32), categories=Index(names, dtype=object))
        return {
            TASK_INDEX: np.array(self._tasks, dtype=np.int64),
            ROLLOUT_INDEX: np.array(self._rollouts, dtype=np.int64),
            AGENT_REF: agents.reorder_categories(sorted(names)),
        }

    def frame(self) -> "DataFrame":
        """Return the columns as a frame of their own, in the order in which rows were added."""
        from pandas import DataFrame

        return DataFrame(self.columns())


class RolloutTable:
    """Collects the numeric fields of rollout rows and forgets the rest: 8 bytes per rollout and field.

    Rows may be added at any time, also after `frame()`.
    """

    def __init__(self) -> None:
        self._keys = KeyTable("rollout")
        self._columns: dict[str, array[float]] = {}
        self._usage: set[str] = set()
        self._inexact: set[str] = set()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def fields(self) -> list[str]:
        """Names of the numeric fields, in order of first appearance."""
        return list(self._columns)

    @property
    def usage_fields(self) -> list[str]:
        """Those of the fields that `response.usage` gave."""
        return [name for name in self._columns if name in self._usage]

    @property
    def integer_fields(self) -> frozenset[str]:
        """Those of the fields whose every value was an int or a boolean that a double holds exactly."""
        return frozenset(name for name in self._columns if name not in self._inexact)

    def add(self, row: Row) -> None:
        """Append a rollout row; it need not hold heavy fields (`rollmill.contracts.rows.light_row`).

        Raises:
            InputError: the row has no valid key, or its reward is not finite. The table is then unchanged.
        """
        key = self._keys.check(row)
        reward = row.get(REWARD)
        if isinstance(reward, int | float) and not is_number(reward):
            raise InputError(f"rollout {key}: the reward must be a finite number")
        position, columns = len(self), self._columns
        for name, value in numeric_fields(row).items():
            column = columns.get(name)
            if column is None or len(column) < position:
                column = self._filled(name, position)
            column.append(value)
            if isinstance(value, float) or abs(value) > _LARGEST_EXACT:
                self._inexact.add(name)
        self._usage.update(usage_of(row))
        self._keys.add(key, row)

    def _filled(self, name: str, length: int) -> "array[float]":
        # Gaps are filled when a field comes back, so a field that is rare costs nothing on rollouts without it.
        column = self._columns.setdefault(name, array("d"))
        column.extend(_NAN * (length - len(column)))
        return column

    def frame(self) -> "DataFrame":
        """Return a copy as a frame: the two indices, the agent's name as `agent_ref`, and a column per field.

        Rows are in the order in which they were added; a missing value is NaN.
        """
        from pandas import DataFrame

        columns = self._keys.columns()
        columns.update({name: _padded(column, len(self)) for name, column in self._columns.items()})
        return DataFrame(columns, copy=False)


def _padded(column: "array[float]", length: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    import numpy as np

    values = np.full(length, np.nan)
    values[: len(column)] = np.frombuffer(column)
    return values
