"""The profile of a run, from its files or from rows: what the command line, the profiler and library users share."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.keys import KeySet
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.reader import parse_line
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import AGENT_REF, COMPONENTS, RESPONSE, REWARD, TASK_INDEX, TIMING, Row, row_key
from rollmill.errors import InputError
from rollmill.metrics.profile import RewardProfile, TaskInputs, profile_table
from rollmill.metrics.sources import Inputs, Rollouts
from rollmill.metrics.table import KEYS, RolloutTable

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from rollmill.artifacts.column_arrays import Columns

_CHUNK = 4096
_KEYS_SHOWN = 10
_OUTCOME = frozenset({RESPONSE, REWARD, COMPONENTS, TIMING})


@dataclass(frozen=True, slots=True)
class RunTables:
    """The keys and numbers of a run; nothing else of its rollouts is kept."""

    inputs: Inputs
    rollouts: Rollouts
    expected: int = 0
    """Rollouts that the run is to have, when that is known; input rows are written only ahead of dispatch."""
    refused: tuple[str, ...] = ()
    """Keys of rollouts that were left out because their reward is not a finite number."""
    columns: "Columns | None" = None
    """All that was read of the rollouts, when they come from a file; `rollmill.artifacts.columns.read_columns` takes
    it, so that the file need not be read again."""
    input_columns: "Columns | None" = None
    """All that was read of the input rows, likewise."""


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """One agent's rewards, weighing every rollout the same. None stands for what is undefined."""

    agent: str
    """Empty for rollouts that name no agent."""
    tasks: int
    """Tasks with at least one finished rollout."""
    rollouts: int
    expected: int
    """Rollouts that the input rows ask for."""
    mean: float | None
    std: float | None
    """Sample standard deviation over rollouts; 0 for a single one."""
    minimum: float | None
    maximum: float | None
    task_means: list[float]
    """Mean reward of each task."""


class Profile:
    """The profile of a run as pandas frames, made when first asked for.

    Args:
        tables: what was read of the run.
        allow_partial: accept a run with rollouts missing.

    Raises:
        InputError: duplicate keys, rollouts with no input row, or, unless partial, missing rollouts or rewards that
            are not finite; shows the first ten keys.
    """

    def __init__(self, tables: RunTables, *, allow_partial: bool = False) -> None:
        self._tables = tables
        if tables.refused and not allow_partial:
            raise InputError(f"{_refused(tables.refused)} (a partial profile without them is possible)")
        self.reward_profile: RewardProfile = profile_table(tables.inputs, tables.rollouts, allow_partial=allow_partial)
        """The rows of the two profile files, as JSON objects."""
        unwritten = tables.expected - len(tables.inputs)
        if unwritten > 0 and not allow_partial:
            raise InputError(
                f"{unwritten} of {tables.expected} rollouts were not started yet (a partial profile is possible)"
            )

    @cached_property
    def completion(self) -> JsonObject:
        """How complete the run is. Counts of tasks are over those that were started.

        `refused_rollouts` are those whose reward is not a finite number, if there are any; they count as missing.
        """
        from rollmill.metrics.groups import percent

        found = self.reward_profile.completion
        done, expected = found["completed_rollouts"], max(found["expected_rollouts"], self._tables.expected)
        return {
            **found,
            "expected_rollouts": expected,
            "missing_rollouts": expected - done,
            "reward_profile_completion_pct": percent(done, expected),
            **({"refused_rollouts": len(self._tables.refused)} if self._tables.refused else {}),
        }

    @cached_property
    def tasks(self) -> "DataFrame":
        """One row per task with a finished rollout: `_ng_task_index`, statistics, and how complete the task is."""
        return _frame(self.reward_profile.iter_tasks(), first=TASK_INDEX, leave_out=("sample", "rollout_infos"))

    @cached_property
    def agents(self) -> "DataFrame":
        """One row per agent: its name as `agent`, and statistics over all its rollouts."""
        entries = ({"agent": entry[AGENT_REF]["name"], **entry} for entry in self.reward_profile.agents)
        return _frame(entries, first="agent", leave_out=(AGENT_REF,))

    @cached_property
    def by_agent(self) -> list[AgentSummary]:
        """The reward of each agent at a glance, by name; also of those with no finished rollout."""
        joined = self._joined()
        return [_summary(str(name), group) for name, group in joined.groupby("agent", sort=True)]

    def _joined(self) -> "DataFrame":
        """One row per input row: task, agent (the input row's, else the rollout's own), whether it is done, reward."""
        rollouts = self._tables.rollouts.frame()
        if REWARD not in rollouts:
            rollouts[REWARD] = float("nan")
        joined = self._tables.inputs.frame().merge(
            rollouts[[*KEYS, AGENT_REF, REWARD]], on=KEYS, how="left", suffixes=("", "_own"), indicator="done"
        )
        named, own = joined[AGENT_REF].astype(object), joined[f"{AGENT_REF}_own"].astype(object)
        agent = named.where(named.notna(), own)
        return joined.assign(agent=agent.where(agent.notna(), ""), done=joined["done"] == "both")


def profile(inputs: str | Path, rollouts: str | Path, *, allow_partial: bool = False) -> Profile:
    """Profile the files of a run, also of one that still goes on; large ones are read on all cores.

    Args:
        inputs: the run's `x_materialized_inputs.jsonl`.
        rollouts: the run's `x.jsonl`.
        allow_partial: accept a run with rollouts missing.

    Raises:
        InputError: a file cannot be read, a line is not a row with its keys, keys are duplicate, a rollout has no
            input row, or (unless partial) rollouts are missing or have a reward that is not finite.
    """
    return Profile(read_tables(Path(inputs), Path(rollouts)), allow_partial=allow_partial)


def read_tables(inputs: Path | None, rollouts: Path) -> RunTables:
    """Read the files of a run; without inputs, the rollouts stand for them.

    When both belong to one run with a manifest, that says how many rollouts to expect and whether the run still
    goes on, and a file that is not there yet is empty.

    Raises:
        InputError: a file cannot be read, or a line is not a row with its keys.
    """
    from rollmill.artifacts.columns import read_input_columns, read_rollout_columns

    files = RunFiles(rollouts.absolute())
    manifest = read_manifest(files.manifest)
    columns = read_rollout_columns(files, manifest)
    if inputs is None:
        return tables_of(files.rollouts, columns, None)
    own = manifest if inputs.absolute() == files.inputs else None
    return tables_of(inputs, columns, read_input_columns(inputs, may_be_missing=own is not None), own)


def tables_of(path: Path, rollouts: "Columns", inputs: "Columns | None", manifest: Manifest | None = None) -> RunTables:
    """Put together what was read of a run.

    Args:
        path: the file of the input rows; of the rollouts, when those stand for the input rows.
        rollouts: columns of the rollouts.
        inputs: columns of the input rows; None when there are none.
        manifest: of the run to which both belong, if it has one.
    """
    from rollmill.artifacts.column_table import ColumnTable, InputColumns, with_inputs, without_repeats

    if inputs is None:
        known = InputColumns(path, without_repeats(rollouts), _OUTCOME)
        return RunTables(known, ColumnTable(rollouts), refused=rollouts.refused, columns=rollouts)
    known = InputColumns(path, inputs)
    expected = manifest.counts.expected if manifest is not None else 0
    live = manifest is not None and manifest.state in ("running", "paused")
    # A rollout may be on disk a moment before its input row.
    counted = with_inputs(rollouts, known) if live and len(inputs) < expected else rollouts
    return RunTables(known, ColumnTable(counted), expected, rollouts.refused, rollouts, inputs)


def collect_tables(inputs: Iterable[Row], rollouts: Iterable[Row], *, live: bool = False) -> RunTables:
    """Take the numbers out of rows.

    Args:
        inputs: input rows; read to the end before the rollouts.
        rollouts: finished rollouts.
        live: the run goes on, so a rollout may be on disk a moment before its input row: it does not count yet.

    Raises:
        InputError: a row has no valid key, or a reward is not finite.
    """
    task_inputs, table, known = TaskInputs(), RolloutTable(), KeySet()
    for row in inputs:
        task_inputs.add(row)
        if live:
            known.add(row_key(row))
    for row in rollouts:
        if not live or _is_known(row, known):
            table.add(row)
    return RunTables(task_inputs, table)


def standing_in(rollouts: Iterable[Row]) -> RunTables:
    """Take the numbers out of rollouts for which no input rows are known: what is there is what was expected.

    Raises:
        InputError: a row has no valid key, or a reward is not finite.
    """
    task_inputs, table, known = TaskInputs(), RolloutTable(), KeySet()
    for row in rollouts:
        table.add(row)
        if known.add(row_key(row)):  # a duplicate is the rollouts' fault, and is reported as theirs
            task_inputs.add({name: value for name, value in row.items() if name not in _OUTCOME})
    return RunTables(task_inputs, table)


def read_finished(path: Path) -> Iterator[Row]:
    """Yield the rows of a file that may still be written: a torn last line is left out, a whole one is not.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object; names file and line.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    rows = [parse_line(path, number, line)] if line.strip() else []
                except InputError:
                    if line.endswith(b"\n"):
                        raise
                    return  # half an object is never valid JSON, so this one was torn
                yield from rows
                if not line.endswith(b"\n"):
                    return  # what a writer appends meanwhile would be read as a line of its own
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _refused(keys: tuple[str, ...]) -> str:
    more = f" and {len(keys) - _KEYS_SHOWN} more" if len(keys) > _KEYS_SHOWN else ""
    return f"{len(keys)} rollouts have a reward that is not a finite number: {', '.join(keys[:_KEYS_SHOWN])}{more}"


def _is_known(row: Row, known: KeySet) -> bool:
    try:
        return row_key(row) in known
    except ValueError:
        return True  # the table refuses it, and says which row it was


def _frame(entries: Iterable[JsonObject], *, first: str, leave_out: Collection[str]) -> "DataFrame":
    """Make a frame chunk by chunk: as JSON objects, the numbers of a large profile take ten times the space."""
    from pandas import DataFrame, concat

    kept = ({name: value for name, value in entry.items() if name not in leave_out} for entry in entries)
    chunks = []
    while chunk := list(islice(kept, _CHUNK)):
        chunks.append(DataFrame.from_records(chunk))
    return concat(chunks, ignore_index=True) if chunks else DataFrame(columns=[first])


def _summary(agent: str, group: "DataFrame") -> AgentSummary:
    done = group[group["done"]]
    rewards = done[REWARD]
    return AgentSummary(
        agent=agent,
        tasks=int(done[TASK_INDEX].nunique()),
        rollouts=len(done),
        expected=len(group),
        mean=_defined(rewards.mean()),
        std=0.0 if len(done) == rewards.count() == 1 else _defined(rewards.std()),
        minimum=_defined(rewards.min()),
        maximum=_defined(rewards.max()),
        task_means=_task_means(done),
    )


def _task_means(done: "DataFrame") -> list[float]:
    means: Series[float] = done.groupby(TASK_INDEX)[REWARD].mean().dropna()
    return [float(value) for value in means]


def _defined(value: float) -> float | None:
    return None if value != value else float(value)
