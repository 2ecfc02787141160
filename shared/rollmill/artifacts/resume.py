from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.keys import KeySet
from rollmill.artifacts.reader import read_rollouts
from rollmill.contracts import rows
from rollmill.contracts.rows import Row, RowKey, row_key
from rollmill.errors import InputError


@dataclass(slots=True)
class Progress:
    """Which rollouts of a run are settled, as its files say."""

    done: KeySet = field(default_factory=KeySet)
    """Completed, or given up on: none of them runs again."""
    completed: int = 0
    failed: int = 0
    attempts: dict[RowKey, int] = field(default_factory=dict)
    """Failed attempts of rollouts that are not done."""


def read_progress(
    files: RunFiles,
    *,
    max_attempts: int,
    on_rollout: Callable[[Row], None] = lambda row: None,
    on_failed_attempt: Callable[[Row], None] = lambda row: None,
    on_given_up: Callable[[Row], None] = lambda row: None,
) -> Progress:
    """Read how far a run got.

    Args:
        files: the run's files; missing ones count as empty, torn last lines do not count.
        max_attempts: a rollout with as many failed attempts is given up on.
        on_rollout: called with each completed rollout.
        on_failed_attempt: called with each line of the failures file.
        on_given_up: called with the last failure of each rollout that was given up on.

    Raises:
        InputError: a line is not a row with its keys; names file and line.
    """
    progress = Progress()
    if files.rollouts.exists():
        for number, row in enumerate(read_rollouts(files.rollouts), start=1):
            if progress.done.add(_key(files.rollouts, row, number)):
                progress.completed += 1
                on_rollout(row)
    if files.failures.exists():
        for number, row in enumerate(read_rollouts(files.failures), start=1):
            on_failed_attempt(row)
            if _gives_up(progress, _key(files.failures, row, number), row, max_attempts):
                on_given_up(row)
    return progress


def _gives_up(progress: Progress, key: RowKey, row: Row, max_attempts: int) -> bool:
    """Count one failed attempt; return whether it was the one after which the rollout is given up on."""
    if key in progress.done:
        return False
    attempts = progress.attempts.get(key, 0) + 1
    if row.get(rows.FAILURE_TERMINAL) or attempts >= max_attempts:
        progress.attempts.pop(key, None)
        progress.done.add(key)
        progress.failed += 1
        return True
    progress.attempts[key] = attempts
    return False


def _key(path: Path, row: Row, number: int) -> RowKey:
    try:
        return row_key(row)
    except ValueError as error:
        raise InputError(f"{path}:{number}: a row of a run has a key: {error}") from None
