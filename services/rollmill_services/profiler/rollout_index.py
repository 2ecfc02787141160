"""The rollouts of one run as a table that is filtered, sorted and searched. It imports numpy and pandas: import this
module inside functions only."""

import json
import mmap
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from pandas import Categorical, DataFrame, Series, concat

from rollmill.artifacts.columns import RunColumns
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.live import FollowedFile, LiveColumns
from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.reader import iter_finished
from rollmill.artifacts.row_access import RowFile
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import FAILURE_CLASS, REWARD, ROLLOUT_INDEX, TASK_INDEX, Row, RowKey, agent_name, row_key
from rollmill.errors import DeadlineError, InputError, NotFoundError
from rollmill.metrics.selection import parse_filter

Positions = NDArray[np.int64]
T = TypeVar("T")

SHOWN: Final = ("task", "repeat", "agent", "reward", "output_tokens", "turns", "seconds", "failure")
"""Columns of the table that every answer has."""
SEARCH_SECONDS: Final = 30.0
"""Longest search for a text."""
_KEPT_ORDERS: Final = 16
_FINISHED, _FAILED = 0, 1


class RolloutNotFoundError(NotFoundError):
    """The run has no such rollout, or it has not ended yet."""

    slug, title = "rollout-not-found", "No such rollout"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rollouts are wanted, and in which order."""

    filter: str | None = None
    """An expression over the columns of the table."""
    sort: str | None = None
    """A column; `-column` for the largest first. Missing values are last. The order of completion when not given."""
    text: str | None = None
    """Only rollouts whose line has this text, whatever the case of its letters a to z."""


class RolloutIndex:
    """Answers questions about single rollouts of a run that may still grow. Threads may share it.

    Args:
        files: the run's files; none of them need be there yet.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._rollouts = LiveColumns(files)
        self._inputs = FollowedFile(files.inputs, "inputs")
        self._lock = Lock()
        self._seen: tuple[object, ...] = ()
        self._frame = DataFrame()
        self._orders: OrderedDict[Asked, Positions] = OrderedDict()

    def page(self, asked: Asked, *, offset: int, limit: int) -> JsonObject:
        """Return some rollouts of the table.

        Returns:
            `total`, the number of rollouts that were asked for; `rollouts`, objects with the columns of `SHOWN`, null
            for what is unknown; `columns`, the names that filters and sorting may use.

        Raises:
            InputError: the filter or the column to sort by is wrong, or a file of the run is damaged.
            DeadlineError: the search for a text took too long.
        """
        with self._lock:
            frame = self._fresh()
            order = _kept(self._orders, asked, lambda: self._order(frame, asked))
        some = frame.loc[order[offset : offset + limit], list(SHOWN)]
        return {
            "total": len(order),
            "rollouts": [_told(record) for record in some.to_dict("records")],
            "columns": [name for name in frame.columns if not name.startswith("_")],
        }

    def rollout(self, task: int, repeat: int) -> JsonObject:
        """Return one rollout.

        Returns:
            `row`, its line of the rollouts file, null when every attempt failed; `attempts`, the lines of its failed
            attempts; `input`, its materialized input row, null when that is not known.

        Raises:
            RolloutNotFoundError: it is not among the rollouts that ended.
            InputError: a file of the run is damaged.
        """
        with self._lock:
            frame = self._fresh()
            self._inputs.refresh()
            inputs = self._inputs.columns()
        found = frame[(frame["task"] == task) & (frame["repeat"] == repeat)]
        if found.empty:
            raise RolloutNotFoundError(f"no rollout {task}:{repeat} of this run has ended", task=task, repeat=repeat)
        known = np.flatnonzero((inputs.tasks == task) & (inputs.rollouts == repeat))
        done = found.loc[found["_file"] == _FINISHED, "_offset"]
        return {
            "row": _row_at(self._files.rollouts, done.iloc[0]) if len(done) else None,
            "attempts": self._attempts(task, repeat),
            "input": _row_at(self._files.inputs, inputs.offsets[known[0]]) if len(known) else None,
        }

    def finished(self) -> RunColumns:
        """Return the columns of the finished rollouts, in order of completion."""
        with self._lock:
            self._rollouts.refresh()
            return self._rollouts.columns()

    def _fresh(self) -> DataFrame:
        """Return the table as the files are now; made anew only when one of them changed."""
        # Looked at first, so that what comes while files are read is seen the next time.
        seen = tuple(_stamp(path) for path in (self._files.rollouts, self._files.failures, self._files.manifest))
        self._rollouts.refresh()
        if seen != self._seen:
            columns = self._rollouts.columns()
            self._frame = _table(columns, self._failed(columns), self._scores())
            self._orders.clear()
            self._seen = seen
        return self._frame

    def _scores(self) -> dict[str, str]:
        manifest = read_manifest(self._files.manifest)
        return {agent: manifest.score_field(agent) for agent in manifest.scoring} if manifest else {}

    def _failed(self, columns: RunColumns) -> DataFrame:
        """Return the last failed attempt of each rollout that has no finished one."""
        last = {
            key: (agent_name(row) or "", str(row.get(FAILURE_CLASS) or "unclassified"), offset)
            for offset, key, row in self._failures()
        }
        if last:
            for key in zip(columns.columns.tasks.tolist(), columns.columns.rollouts.tolist(), strict=True):
                last.pop(RowKey(*key), None)
        return DataFrame(
            {
                "task": np.array([key.task for key in last], np.int64),
                "repeat": np.array([key.rollout for key in last], np.int64),
                "agent": Categorical([agent for agent, _, _ in last.values()]),
                "failure": Categorical([failure for _, failure, _ in last.values()]),
                "_offset": np.array([offset for _, _, offset in last.values()], np.int64),
                "_file": np.full(len(last), _FAILED, np.int8),
            }
        )

    def _failures(self) -> Iterator[tuple[int, RowKey, Row]]:
        """Yield the failed attempts, each with the offset of its line; one in memory at a time."""
        path = self._files.failures
        for offset, _, row in iter_finished(path) if path.exists() else ():
            try:
                yield offset, row_key(row), row
            except ValueError as error:
                raise InputError(f"{path}: {error}") from None

    def _attempts(self, task: int, repeat: int) -> list[Row]:
        return [row for _, key, row in self._failures() if key == (task, repeat)]

    def _order(self, frame: DataFrame, asked: Asked) -> Positions:
        chosen = np.ones(len(frame), bool)
        if asked.filter is not None:
            known = frame.drop(columns=[name for name in frame.columns if name.startswith("_")])
            chosen = parse_filter(asked.filter).mask(known).to_numpy()
        positions = np.flatnonzero(chosen)
        if asked.text:
            positions = self._with_text(frame, positions, asked.text)
        return positions if asked.sort is None else _sorted(frame, positions, asked.sort)

    def _with_text(self, frame: DataFrame, positions: Positions, text: str) -> Positions:
        wanted = _pattern(text)
        file, offsets = frame["_file"].to_numpy()[positions], frame["_offset"].to_numpy()[positions]
        parts = [
            positions[file == number][_matches(path, offsets[file == number], wanted)]
            for number, path in ((_FINISHED, self._files.rollouts), (_FAILED, self._files.failures))
        ]
        return np.sort(np.concatenate(parts))


def _table(columns: RunColumns, failed: DataFrame, scores: dict[str, str]) -> DataFrame:
    frame = columns.frame.drop(columns=["task", "repeat", "failure"], errors="ignore")  # fields that are called so
    frame = frame.rename(columns={TASK_INDEX: "task", ROLLOUT_INDEX: "repeat"})
    truncated = frame["truncated"].astype(float)  # failed rollouts have none
    frame = frame.assign(truncated=truncated, _offset=columns.columns.offsets, _file=np.int8(_FINISHED))
    for name in (REWARD, "output_tokens"):
        if name not in frame:
            frame[name] = np.nan
    frame = frame.assign(**_of_tasks(frame, scores))
    if failed.empty:
        return frame.assign(failure="")
    return concat([frame.assign(failure=""), failed], ignore_index=True).assign(
        failure=lambda table: table["failure"].astype(object), agent=lambda table: table["agent"].astype(object)
    )


def _of_tasks(frame: DataFrame, scores: dict[str, str]) -> dict[str, "Series[float]"]:
    """Return what is known of the task of each rollout, by the names that `select` uses."""
    agents = frame["agent"].astype(object)
    score = frame[REWARD].astype(float)
    for agent, name in scores.items():
        if name != REWARD and name in frame:
            score = score.where(agents != agent, frame[name])
    by_task = score.groupby(frame["task"], sort=False)
    correct = (score >= 1.0).astype(float).where(score.notna())
    return {
        "num_rollouts": by_task.transform("size").astype(float),
        "mean_reward": frame[REWARD].groupby(frame["task"], sort=False).transform("mean"),
        "std_reward": frame[REWARD].groupby(frame["task"], sort=False).transform("std"),
        "pass_rate": correct.groupby(frame["task"], sort=False).transform("mean"),
    }


def _sorted(frame: DataFrame, positions: Positions, sort: str) -> Positions:
    name, largest_first = sort.removeprefix("-"), sort.startswith("-")
    if name not in frame or name.startswith("_"):
        known = ", ".join(column for column in frame.columns if not column.startswith("_"))
        raise InputError(f"there is no column {name[:100]!r} to sort by; there are: {known}")
    values = frame[name].iloc[positions]
    if name in ("agent", "failure", "answer"):
        values = Series(Categorical(values.astype(object).where(values != "")).codes, dtype=float).replace(-1.0, np.nan)
    numbers = values.to_numpy(dtype=float)
    order = np.argsort(-numbers if largest_first else numbers, kind="stable")  # NaN comes last either way
    return positions[order]


def _pattern(text: str) -> "re.Pattern[bytes]":
    """Match a text as it is written in JSON, with and without escapes for what is not ASCII."""
    forms = dict.fromkeys(json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True))
    return re.compile(b"|".join(re.escape(form.encode("utf-8", "surrogatepass")) for form in forms), re.IGNORECASE)


def _matches(path: Path, offsets: Positions, wanted: "re.Pattern[bytes]") -> NDArray[np.bool_]:
    """Say which of the lines that begin at some offsets match."""
    found = np.zeros(len(offsets), bool)
    if not len(offsets):
        return found
    until = time.monotonic() + SEARCH_SECONDS
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for number, start in enumerate(offsets.tolist()):
            end = content.find(b"\n", start)
            found[number] = wanted.search(content, start, end if end >= 0 else len(content)) is not None
            if time.monotonic() > until:
                raise DeadlineError(f"the search took longer than {SEARCH_SECONDS:.0f} s: search less, with a filter")
    return found


def _row_at(path: Path, offset: int) -> Row:
    with RowFile(path) as rows:
        return rows.at(int(offset))


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _told(record: "Mapping[Hashable, object]") -> JsonObject:
    return {str(name): None if value != value or value == "" else value for name, value in record.items()}


def _kept(kept: "OrderedDict[Asked, T]", key: Asked, make: Callable[[], T]) -> T:
    """Return what was made before, or make it; what was not asked for longest is forgotten."""
    value = kept.pop(key) if key in kept else make()
    kept[key] = value
    while len(kept) > _KEPT_ORDERS:
        kept.popitem(last=False)
    return value
