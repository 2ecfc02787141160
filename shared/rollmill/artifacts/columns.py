"""The numbers of a run's finished rollouts. This module imports numpy: import it inside functions, not at start-up."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.artifacts.column_arrays import Columns, columns_of, joined
from rollmill.artifacts.column_table import ColumnTable, categories
from rollmill.artifacts.failure_counts import FailureCounts, count_failures
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.artifacts.row_access import RowFile
from rollmill.artifacts.scanning import scan
from rollmill.artifacts.writer import StorageError
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import ROLLOUT_INDEX, TASK_INDEX, Row

if TYPE_CHECKING:
    from pandas import DataFrame

    from rollmill.artifacts.column_file import ColumnFile

_KEPT = ("agent", "answer", "truncated")
_GIVING_WAY = ("turns", "tool_errors", "seconds")


@dataclass(frozen=True)
class RunColumns:
    """The numbers of a run's finished rollouts, and what else a profile says about the run."""

    path: Path
    """The rollouts file."""
    columns: Columns
    expected: dict[str, int] = field(default_factory=dict)
    """Rollouts that each agent is to have; empty when that is not known."""
    failures_by_agent: dict[str, FailureCounts] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def fields(self) -> list[str]:
        """Numeric fields of the frame, in order of first appearance.

        Left out are those that are called like a column that every frame has: `agent`, `answer` and `truncated`.
        """
        return [name for name in self.columns.fields if name not in _KEPT]

    @property
    def usage_fields(self) -> list[str]:
        """Those of the fields that `response.usage` gave."""
        return [name for name in self.fields if name in self.columns.usage]

    @property
    def integer_fields(self) -> frozenset[str]:
        """Those of the fields whose every value was an int or a boolean that a double holds exactly."""
        return frozenset(self.fields) - self.columns.inexact

    @property
    def failures(self) -> JsonObject:
        """Failed attempts of all agents, and rollouts refused because of their reward: `by_class`, `by_boundary`."""
        total = FailureCounts()
        for counts in self.failures_by_agent.values():
            total.add(counts)
        total.refuse(len(self.columns.refused))
        return total.to_json()

    @cached_property
    def frame(self) -> "DataFrame":
        """One row per finished rollout, in the order of the file.

        Columns: the two indices (int64), `agent` and `answer` (categories, missing where there is none), `truncated`
        (bool), the numeric fields (float64, NaN where a rollout lacks one), and, unless fields are called so, `turns`,
        `tool_errors` and `seconds` (float64, NaN where unknown).
        """
        from pandas import DataFrame

        columns = self.columns
        own = {name: getattr(columns, name) for name in _GIVING_WAY}
        return DataFrame(
            {
                TASK_INDEX: columns.tasks,
                ROLLOUT_INDEX: columns.rollouts,
                "agent": categories(columns.agents),
                **own,
                **{name: columns.fields[name] for name in self.fields},
                "answer": categories(columns.answers),
                "truncated": columns.truncated,
            },
            copy=False,
        )

    def table(self) -> ColumnTable:
        """Return the rollouts as the classic profile takes them."""
        return ColumnTable(self.columns)

    def rows(self, ids: Iterable[str]) -> dict[str, Row]:
        """Read single rollouts from the file.

        Args:
            ids: rollouts as `task:rollout`; those that are not there are left out.

        Raises:
            InputError: the file has changed.
        """
        wanted = set(ids)
        keys = zip(self.columns.tasks.tolist(), self.columns.rollouts.tolist(), strict=True)
        found = {
            key: offset
            for (task, rollout), offset in zip(keys, self.columns.offsets.tolist(), strict=True)
            if (key := f"{task}:{rollout}") in wanted
        }
        with RowFile(self.path) as file:
            return {key: file.at(offset) for key, offset in found.items()}


def read_columns(files: RunFiles, rollouts: Columns | None = None, inputs: Columns | None = None) -> RunColumns:
    """Read the numbers of a run as it stands, from `x_metrics.parquet` as far as that goes and else from `x.jsonl`.

    Of a finished run, what was read is written back, so that it is read faster the next time. A run with a manifest
    need not have any rollouts yet.

    Args:
        files: the run's files.
        rollouts: the columns of its rollouts, when they were read already.
        inputs: those of its input rows, when they were.

    Raises:
        InputError: a file cannot be read, or a line is no rollout; names file and line.
    """
    manifest = read_manifest(files.manifest)
    columns = read_rollout_columns(files, manifest) if rollouts is None else rollouts
    expected = expected_rollouts(files, manifest, inputs)
    return RunColumns(files.rollouts, columns, expected, count_failures(files.failures))


def read_rollout_columns(files: RunFiles, manifest: Manifest | None) -> Columns:
    """Read the columns of the rollouts alone; see `read_columns`."""
    answers = answer_fields(manifest)
    if manifest is not None and not files.rollouts.exists():
        return joined([])
    old = open_column_file(files, answers)
    with scan(files.rollouts, start=old.end if old else 0, answers=answers) as chunks:
        import_module("pandas")  # whoever wants the columns wants pandas, and processes are reading meanwhile
        tail = joined(map(columns_of, chunks))
    if manifest is not None and manifest.state == "finished" and (len(tail) or tail.refused):
        with suppress(StorageError):  # a folder that cannot be written to
            write_column_file(files, old, tail, answers)
    if old is None:
        return tail
    return joined([old.read(), tail]) if len(tail) or tail.refused else old.read()


def read_input_columns(path: Path, *, may_be_missing: bool = False) -> Columns:
    """Read keys, agents and offsets of materialized input rows; a file that may be missing has none.

    Raises:
        InputError: the file cannot be read, or a line is no row with its keys; names file and line.
    """
    if may_be_missing and not path.exists():
        return joined([])
    with scan(path, kind="inputs") as chunks:
        return joined(map(columns_of, chunks))


def update_column_file(files: RunFiles, *, processes: int | None = None) -> None:
    """Bring `x_metrics.parquet` up to date with `x.jsonl`.

    Args:
        files: the run's files.
        processes: most processes that read; one for each usable core when not given.

    Raises:
        InputError: a line is no rollout; names file and line.
        StorageError: the file cannot be written.
    """
    answers = answer_fields(read_manifest(files.manifest))
    old = open_column_file(files, answers)
    with scan(files.rollouts, start=old.end if old else 0, answers=answers, processes=processes) as chunks:
        tail = joined(map(columns_of, chunks))
    if len(tail) or tail.refused:
        write_column_file(files, old, tail, answers)


def open_column_file(files: RunFiles, answers: AnswerFields) -> "ColumnFile | None":
    """Open the column file of a run; None when there is none that agrees with the rollouts."""
    if not files.metrics_parquet.exists():
        return None
    from rollmill.artifacts.column_file import open_columns  # pyarrow is loaded where there is something to read

    return open_columns(files.metrics_parquet, files.rollouts, answers)


def write_column_file(files: RunFiles, old: "ColumnFile | None", tail: Columns, answers: AnswerFields) -> None:
    """Write the column file of a run: what it had, and what came after that.

    Raises:
        StorageError: it cannot be written.
    """
    from rollmill.artifacts.column_file import write_columns

    write_columns(files.metrics_parquet, files.rollouts, old, tail, answers)


def answer_fields(manifest: Manifest | None) -> AnswerFields:
    """Return where the answers of a run's rollouts are."""
    scoring = manifest.scoring if manifest is not None else {}
    return AnswerFields({agent: entry.answer_field for agent, entry in scoring.items()})


def expected_rollouts(files: RunFiles, manifest: Manifest | None, inputs: Columns | None = None) -> dict[str, int]:
    """Return how many rollouts each agent is to have: the manifest knows, or else the input rows.

    Raises:
        InputError: there is no manifest, and the input rows, which were not read yet, cannot be read.
    """
    if manifest is not None and manifest.agents:
        return {agent: progress.expected for agent, progress in manifest.agents.items()}
    rows = read_input_columns(files.inputs, may_be_missing=True) if inputs is None else inputs
    counts = categories(rows.agents).value_counts()
    return {str(agent): int(count) for agent, count in counts.items()}
