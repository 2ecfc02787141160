"""Columns as the classic profile takes them. It imports pandas: import this module inside functions only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from pandas import Categorical, DataFrame, Index

from rollmill.artifacts.column_arrays import Columns, Texts
from rollmill.artifacts.row_access import RowFile
from rollmill.contracts.rows import AGENT_REF, ROLLOUT_INDEX, TASK_INDEX, Row


def categories(texts: Texts) -> Categorical:
    """Return a column of repeated texts, its names sorted; missing where there is none."""
    column = Categorical.from_codes(texts.codes, categories=Index(texts.names, dtype=object))
    return column.reorder_categories(sorted(texts.names))


class ColumnTable:
    """Rollouts as the classic profile takes them.

    Args:
        columns: the rollouts.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def fields(self) -> list[str]:
        """Names of the numeric fields, in order of first appearance."""
        return list(self._columns.fields)

    @property
    def usage_fields(self) -> list[str]:
        """Those of the fields that `response.usage` gave."""
        return [name for name in self._columns.fields if name in self._columns.usage]

    @property
    def integer_fields(self) -> frozenset[str]:
        """Those of the fields whose every value was an int or a boolean that a double holds exactly."""
        return frozenset(self._columns.fields) - self._columns.inexact

    def frame(self) -> DataFrame:
        """Return a frame: the two indices, the agent's name as `agent_ref`, and a column per field."""
        return DataFrame({**_keys(self._columns), **self._columns.fields}, copy=False)


class InputColumns:
    """Input rows of which the keys and agents are in memory; whole rows are read when they are asked for.

    Args:
        path: the file.
        columns: keys, agents and offsets of its rows.
        leave_out: members that a sample does not have.
    """

    def __init__(self, path: Path, columns: Columns, leave_out: frozenset[str] = frozenset()) -> None:
        self._path = path
        self._columns = columns
        self._leave_out = leave_out | {TASK_INDEX, ROLLOUT_INDEX}

    def __len__(self) -> int:
        return len(self._columns)

    @cached_property
    def expected(self) -> dict[int, int]:
        """How many rollouts each task is to have."""
        tasks, counts = np.unique(self._columns.tasks, return_counts=True)
        return dict(zip(tasks.tolist(), counts.tolist(), strict=True))

    def frame(self) -> DataFrame:
        """Return the keys and agents of all rows, in the order of the file."""
        return DataFrame(_keys(self._columns))

    @contextmanager
    def samples(self) -> Iterator[Callable[[int], Row]]:
        """Give a function that reads the first row of a task, without its two indices.

        Raises:
            InputError: the file has changed.
        """
        tasks, first = np.unique(self._columns.tasks, return_index=True)
        offsets = dict(zip(tasks.tolist(), self._columns.offsets[first].tolist(), strict=True))
        with RowFile(self._path) as rows:
            yield lambda task: {n: v for n, v in rows.at(offsets[task]).items() if n not in self._leave_out}


def without_repeats(columns: Columns) -> Columns:
    """Return keys, agents and offsets of the rollouts, of each key only the first."""
    first = ~DataFrame({"task": columns.tasks, "rollout": columns.rollouts}).duplicated().to_numpy()
    return columns if first.all() else columns.only(first)


def with_inputs(columns: Columns, inputs: InputColumns) -> Columns:
    """Return the rollouts of which there is an input row."""
    keys = [TASK_INDEX, ROLLOUT_INDEX]
    joined = DataFrame(_keys(columns))[keys].merge(
        inputs.frame()[keys].drop_duplicates(), on=keys, how="left", indicator=True
    )
    known = (joined["_merge"] == "both").to_numpy()
    return columns if known.all() else columns.only(known)


def _keys(columns: Columns) -> "dict[str, object]":
    return {TASK_INDEX: columns.tasks, ROLLOUT_INDEX: columns.rollouts, AGENT_REF: categories(columns.agents)}
