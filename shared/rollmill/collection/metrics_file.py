import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE

import structlog

from rollmill.artifacts.files import RunFiles

log = structlog.get_logger(__name__)

FEWEST_ROLLOUTS = 100_000
MOST_ROLLOUTS = 500_000
FEWEST_APART = 20_000
"""At the end, fewer rollouts are read in this process: to start another would take longer."""
_TOLD_CHARACTERS = 500


class MetricsFile:
    """Keeps a run's `x_metrics.parquet` not too far behind while the run goes on. What goes wrong is only logged.

    A process of its own writes the file when there is half as much again as it has, so that the cost per rollout stays
    the same however many there are.

    Args:
        files: the run's files.
        earlier: finished rollouts that the run began with.
        fewest: rollouts that it may always be behind.
    """

    def __init__(self, files: RunFiles, *, earlier: int = 0, fewest: int = FEWEST_ROLLOUTS) -> None:
        self._files = files
        self._covered = earlier
        self._fewest = fewest
        self._task: asyncio.Task[None] | None = None

    def keep_up(self, rollouts: int) -> None:
        """Begin to write the file if it is too far behind, and nothing writes it already.

        Args:
            rollouts: those that are on disk.
        """
        behind = rollouts - self._covered
        if behind >= most_behind(self._covered, self._fewest) and (self._task is None or self._task.done()):
            self._covered = rollouts
            self._task = asyncio.create_task(
                _write_apart(self._files), name=f"write {self._files.metrics_parquet.name}"
            )

    async def stop(self) -> None:
        """End what is being written; the file stays as it was before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def most_behind(covered: int, fewest: int = FEWEST_ROLLOUTS) -> int:
    """Return how many rollouts a file that covers so many may lack; more would be too much to hold in memory."""
    return min(max(fewest, covered // 2), MOST_ROLLOUTS)


async def complete_metrics_file(files: RunFiles, *, rollouts: int, fewest_apart: int = FEWEST_APART) -> None:
    """Bring `x_metrics.parquet` up to date with the rollouts. Whatever goes wrong is only logged.

    Args:
        files: the run's files.
        rollouts: those that are on disk.
        fewest_apart: so many or more are read by a process of its own, so that this one's memory stays as it is.
    """
    if rollouts >= fewest_apart:
        await _write_apart(files)
        return
    try:
        await asyncio.to_thread(_update, files)
    except Exception as error:
        _warn(files, str(error))


async def _write_apart(files: RunFiles) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "rollmill.artifacts.column_writer", str(files.rollouts.absolute())),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )
    except OSError as error:
        _warn(files, str(error))
        return
    try:
        _, told = await process.communicate()
    except asyncio.CancelledError:
        process.send_signal(signal.SIGINT)  # so that it takes its unfinished file away
        await process.communicate()
        raise
    if process.returncode:
        _warn(files, told.decode(errors="replace").strip()[-_TOLD_CHARACTERS:])


def _update(files: RunFiles) -> None:
    from rollmill.artifacts.columns import update_column_file  # pyarrow is loaded at the end of a run, not at its start

    update_column_file(files)


def _warn(files: RunFiles, error: str) -> None:
    log.warning("metrics_file_not_written", path=str(files.metrics_parquet), error=error)
