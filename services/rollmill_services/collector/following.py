"""Streams a run's rollouts from its file: a slow reader slows nobody, and any line can be started from."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from rollmill.artifacts.reader import whole_lines_size
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.runs import RunStatus
from rollmill.errors import RollmillError, to_problem
from rollmill_services.collector.runs import ActiveRun, Runs

BLOCK_BYTES = 256 * 1024
POLL_SECONDS = 1.0


async def rollout_lines(runs: Runs, run_id: str, *, from_line: int, follow: bool) -> AsyncIterator[bytes]:
    """Yield a run's rollouts as NDJSON, and a last line that says how it stands.

    Args:
        runs: the service's runs.
        run_id: an existing run.
        from_line: lines to leave out, counted from 0.
        follow: wait for further rollouts until the run ends; else stop at the end of the file.
    """
    active = runs.active(run_id)
    path = runs.files(run_id).rollouts
    reader = _Reader(path, from_line)
    while True:
        ended = active is None or active.done  # read before the file, so that nothing is missed
        waiter = asyncio.ensure_future(active.change()) if active is not None else None
        try:
            async for block in reader.blocks():
                yield block
            if ended or not follow:
                break
            await _wait(waiter)
        finally:
            if waiter is not None:
                waiter.cancel()
    yield dumps(_last(runs.status(run_id))) + b"\n"


async def _wait(waiter: "asyncio.Future[None] | None") -> None:
    if waiter is not None:
        await asyncio.wait([waiter], timeout=POLL_SECONDS)


def _last(status: RunStatus) -> JsonObject:
    summary = status.model_dump(mode="json")
    if status.state == "failed":
        return {"_rollmill_event": "error", **to_problem(RollmillError(status.error)), "run": summary}
    return {"_rollmill_event": "end", **summary}


class _Reader:
    """Reads whole lines from a growing file."""

    def __init__(self, path: Path, skip: int) -> None:
        self._path = path
        self._skip = skip
        self._offset = 0

    async def blocks(self) -> AsyncIterator[bytes]:
        """Yield what was added since the last time, in whole lines."""
        end = await asyncio.to_thread(whole_lines_size, self._path)
        while self._offset < end:
            block = await asyncio.to_thread(self._read, min(BLOCK_BYTES, end - self._offset))
            self._offset += len(block)
            if kept := self._after_skipped(block):
                yield kept

    def _read(self, size: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            return file.read(size)

    def _after_skipped(self, block: bytes) -> bytes:
        start = 0
        while self._skip and (newline := block.find(b"\n", start)) >= 0:
            start = newline + 1
            self._skip -= 1
        return b"" if self._skip else block[start:]


async def tied(runs: Runs, active: ActiveRun, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines; when the reader leaves before the end, cancel the run."""
    try:
        async for line in lines:
            yield line
    finally:
        if not active.done:
            await runs.cancel(active.folder.run_id)
