"""Work that must be bounded in time runs in a process, since a thread that computes cannot be stopped.

A worker program is a script that writes one line when it can serve, and then answers each line of JSON on its standard
input with one line of JSON. It gets nothing of the service's environment, so it sees no secrets.
"""

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.errors import NotReadyError

_LINE_LIMIT = 4 * 1024 * 1024
_ATTEMPTS = 2  # a process that died might have been killed for no fault of the request


class WorkerPool:
    """Processes that answer requests within a time limit, each of them one request at a time.

    Args:
        program: path of the worker's script.
        count: most processes at once, >= 1; each starts when it is first needed.
        timeout_seconds: a process that takes longer for one request is killed, and replaced when needed.
        start_timeout_seconds: longest time that a process may take to become ready.
    """

    def __init__(
        self, program: Path, *, count: int, timeout_seconds: float, start_timeout_seconds: float = 60.0
    ) -> None:
        self._count = count
        self._timeout_seconds = timeout_seconds
        self._idle: asyncio.LifoQueue[_Worker] = asyncio.LifoQueue()  # last in, first out: warm ones are used first
        for _ in range(count):
            self._idle.put_nowait(_Worker(program, start_timeout_seconds))

    async def start(self) -> None:
        """Start one process, so that a fault of the program shows at once.

        Raises:
            NotReadyError: it did not become ready.
        """
        worker = await self._idle.get()
        try:
            await worker.start()
        finally:
            self._idle.put_nowait(worker)

    async def stop(self) -> None:
        """End every process, after the request that it is working on."""
        for worker in [await self._idle.get() for _ in range(self._count)]:
            await worker.stop()
            self._idle.put_nowait(worker)

    async def ask(self, request: JsonObject) -> JsonObject | None:
        """Answer a request; None when it exceeded the time limit, or killed its process twice.

        Raises:
            NotReadyError: no process could be started.
        """
        worker = await self._idle.get()
        try:
            return await self._ask(worker, dumps(request) + b"\n")
        finally:
            self._idle.put_nowait(worker)

    async def _ask(self, worker: "_Worker", line: bytes) -> JsonObject | None:
        for _ in range(_ATTEMPTS):
            await worker.start()
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    reply = await worker.exchange(line)
            except TimeoutError:
                return None
            if reply:
                answer: JsonObject = loads(reply)
                return answer
        return None


class _Worker:
    def __init__(self, program: Path, start_timeout_seconds: float) -> None:
        self._program = program
        self._start_timeout_seconds = start_timeout_seconds
        self._process: Process | None = None

    async def start(self) -> None:
        if self._process is not None and self._process.returncode is None:
            return
        await self.stop()
        # In a session of its own, so that Ctrl-C reaches only the service, which then ends its workers in order.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            str(self._program),
            stdin=PIPE,
            stdout=PIPE,
            limit=_LINE_LIMIT,
            env={},
            start_new_session=True,
        )
        ready = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_timeout_seconds):
                ready = await self.exchange(b"")
        if not ready:
            raise NotReadyError(f"the process of {self._program.name} did not start; see the log", retry_after=1.0)

    async def exchange(self, line: bytes) -> bytes:
        """Send a line and return the answer, empty when the process died; without an answer the process is ended."""
        process, reply = self._process, b""
        if process is None or process.stdin is None or process.stdout is None:
            return reply
        try:
            process.stdin.write(line)
            await process.stdin.drain()
            reply = await process.stdout.readline()
        except ConnectionError:
            return b""
        finally:
            if not reply:  # also when cancelled: a late answer must not be taken for that of the next request
                await self.stop()
        return reply

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.communicate()
