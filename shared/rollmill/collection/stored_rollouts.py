"""Rollouts of an earlier run, read back so that they can be graded again."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.keys import KeySet
from rollmill.artifacts.reader import iter_finished
from rollmill.artifacts.writer import replacing
from rollmill.contracts import rows
from rollmill.contracts.json import loads
from rollmill.contracts.rows import Row, RowKey, agent_name, row_key
from rollmill.errors import InputError

_BOOKKEEPING = (rows.ATTEMPT_INDEX, rows.TIMING)
_OF_THE_FAILURE = frozenset(
    {
        rows.TASK_INDEX,
        rows.ROLLOUT_INDEX,
        rows.AGENT_REF,
        rows.FAILURE_CLASS,
        rows.FAILURE_TERMINAL,
        rows.REWARD,
        "failure",
    }
)
_KEYS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Stored:
    """One stored rollout."""

    key: RowKey
    row: Row
    """The row to be graded: the input row and the response, without any verdict."""
    reward: float | None
    """The reward it had; None when it had none."""


@dataclass(slots=True)
class StoredRollouts:
    """The rollouts to grade again; only their keys and places in the files are kept in memory."""

    inputs: Path
    source: Path
    """The rollouts file, or the failures file when only rollouts whose grading failed are graded again."""
    failed_only: bool
    inputs_digest: str = ""
    source_digest: str = ""
    agents: dict[str, int] = field(default_factory=dict)
    """Rollouts by agent."""
    without_response: int = 0
    """Rollouts whose grading cannot be done again, because they failed before there was a response."""
    places: "array[int]" = field(default_factory=lambda: array("q"))
    """Where each begins in the source, in bytes."""
    input_places: dict[RowKey, int] = field(default_factory=dict)
    """Where each input row begins in its file."""

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[Stored]:
        with self.inputs.open("rb") as inputs:
            for found in self._found():
                key = row_key(found)
                row = _row_at(inputs, self.input_places[key])
                yield Stored(key, self._to_grade(row, found), _old_reward(found))

    def write_inputs(self, path: Path) -> None:
        """Copy the input rows of these rollouts, in their order, to another file."""
        wanted = KeySet()
        for found in self._found():
            wanted.add(row_key(found))
        with replacing(path) as file:
            for _, line, row in iter_finished(self.inputs):
                if row_key(row) in wanted:
                    file.write(line + b"\n")

    def _found(self) -> Iterator[Row]:
        if self.places:  # else the source may not even be there
            with self.source.open("rb") as source:
                yield from (_row_at(source, place) for place in self.places)

    def _to_grade(self, row: Row, found: Row) -> Row:
        if self.failed_only:
            return {**row, **{name: value for name, value in found.items() if name not in _OF_THE_FAILURE}}
        kept = (*_BOOKKEEPING, rows.RESPONSE)
        return {**row, **{name: found[name] for name in kept if name in found}}


def find_stored(inputs: Path, rollouts: Path, *, failed_only: bool = False) -> StoredRollouts:
    """Look through the files of a run.

    Args:
        inputs: its input rows.
        rollouts: its rollouts.
        failed_only: take the rollouts that have a response and no verdict, from the failures file beside `rollouts`.

    Raises:
        InputError: a line is not a row with its keys; keys are duplicate, or have no input row (the first ten).
    """
    failures = RunFiles.at(rollouts).failures
    stored = StoredRollouts(inputs, failures if failed_only else rollouts, failed_only)
    stored.inputs_digest = _index_inputs(stored)
    places = _failed(stored, rollouts) if failed_only else _finished(stored)
    for place, agent in places:
        stored.places.append(place)
        stored.agents[agent] = stored.agents.get(agent, 0) + 1
    return stored


def _index_inputs(stored: StoredRollouts) -> str:
    digest, duplicates = hashlib.sha256(), []
    for offset, line, row in iter_finished(stored.inputs):
        digest.update(line + b"\n")
        key = _key(stored.inputs, row)
        if stored.input_places.setdefault(key, offset) != offset:
            duplicates.append(key)
    _refuse(duplicates, f"{stored.inputs}: duplicate keys")
    return digest.hexdigest()


def _finished(stored: StoredRollouts) -> Iterator[tuple[int, str]]:
    """Yield the place and the agent of each finished rollout."""
    digest, seen = hashlib.sha256(), KeySet()
    duplicates: list[RowKey] = []
    unknown: list[RowKey] = []
    for offset, line, row in iter_finished(stored.source):
        digest.update(line + b"\n")
        key = _key(stored.source, row)
        if not seen.add(key):
            duplicates.append(key)
        elif key not in stored.input_places:
            unknown.append(key)
        yield offset, _agent(stored.source, key, row)
    _refuse(duplicates, f"{stored.source}: duplicate keys")
    _refuse(unknown, f"{stored.source}: rollouts with no input row")
    stored.source_digest = digest.hexdigest()


def _failed(stored: StoredRollouts, rollouts: Path) -> Iterator[tuple[int, str]]:
    """Yield the place and the agent of the last failure of each rollout that is not finished and could be graded."""
    digest, finished, hopeless = hashlib.sha256(), KeySet(), KeySet()
    last: dict[RowKey, tuple[int, str]] = {}
    for _, _, row in iter_finished(rollouts):
        finished.add(_key(rollouts, row))
    for offset, line, row in iter_finished(stored.source) if stored.source.exists() else ():
        digest.update(line + b"\n")
        key = _key(stored.source, row)
        if key in finished:
            continue
        if _is_ungraded(row):
            last[key] = offset, _agent(stored.source, key, row)
        else:
            hopeless.add(key)
    _refuse([key for key in last if key not in stored.input_places], f"{stored.source}: failures with no input row")
    stored.source_digest = digest.hexdigest()
    stored.without_response = sum(key not in last for key in hopeless)
    yield from last.values()


def _is_ungraded(row: Row) -> bool:
    failure = row.get("failure")
    told = failure if isinstance(failure, dict) else {}
    while_grading = told.get("boundary") == "resources" or told.get("phase") == "verify"  # there it may be a judge
    return while_grading and isinstance(row.get(rows.RESPONSE), dict)


def _key(path: Path, row: Row) -> RowKey:
    try:
        return row_key(row)
    except ValueError as error:
        raise InputError(f"{path}: a row of a run has a key: {error}") from None


def _agent(path: Path, key: RowKey, row: Row) -> str:
    name = agent_name(row)
    if name is None:
        raise InputError(f"{path}: the rollout {key} names no agent, so nobody can tell who grades it")
    return name


def _refuse(keys: list[RowKey], what: str) -> None:
    if keys:
        more = ", ..." if len(keys) > _KEYS_SHOWN else ""
        raise InputError(f"{what}: {', '.join(map(str, keys[:_KEYS_SHOWN]))}{more} ({len(keys)} in all)")


def _row_at(file: BinaryIO, place: int) -> Row:
    file.seek(place)
    row: Row = loads(file.readline())
    return row


def _old_reward(row: Row) -> float | None:
    reward = row.get(rows.REWARD)
    return float(reward) if reward is not None and rows.valid_reward(reward) else None
