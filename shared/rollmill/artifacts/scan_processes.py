import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Self

import msgspec
import structlog

from rollmill.artifacts.chunks import Chunk
from rollmill.artifacts.scan import Stretch, lines_for, read_stretch
from rollmill.artifacts.scan_worker import LENGTH_BYTES

log = structlog.get_logger(__name__)

_AHEAD = 2  # stretches that each process may have read before they are asked for


@contextmanager
def read_in_processes(stretches: Sequence[Stretch], count: int) -> Iterator[Iterator[Chunk]]:
    """Read stretches in processes of their own, which begin at once, and hand out their chunks in order.

    What a process cannot do, because it was not started or was killed, is done here.

    Args:
        stretches: in the order in which their chunks are wanted.
        count: most processes.
    """
    team = _Team(stretches, min(count, len(stretches)))
    try:
        yield team.chunks()
    finally:
        team.stop()


class _Team:
    """Threads that share the stretches, each with a process."""

    def __init__(self, stretches: Sequence[Stretch], count: int) -> None:
        self._results: list[Future[list[Chunk]]] = [Future() for _ in stretches]
        self._work = iter(list(zip(stretches, self._results, strict=True)))
        self._lock = threading.Lock()
        self._room = threading.Semaphore(_AHEAD * count)
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, name=f"scan {i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def chunks(self) -> Iterator[Chunk]:
        for i, result in enumerate(self._results):
            yield from result.result()
            self._results[i] = Future()  # its chunks are held no longer
            self._room.release()

    def stop(self) -> None:
        self._stopped = True
        self._room.release(len(self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with _Process() as process:
            while self._room.acquire() and not self._stopped:
                with self._lock:
                    stretch, result = next(self._work, (None, None))
                if stretch is None or result is None:
                    return
                try:
                    result.set_result(process.read(stretch))
                except BaseException as error:  # raised where the result is asked for
                    result.set_exception(error)


class _Process:
    """One reading process, started when it is entered."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder = msgspec.msgpack.Decoder(Chunk)

    def __enter__(self) -> Self:
        # Its own session, so that Ctrl-C reaches only the process that reads the result.
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rollmill.artifacts.scan_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def read(self, stretch: Stretch) -> list[Chunk]:
        try:
            return list(self._answer(stretch))
        except (OSError, EOFError) as error:
            log.warning("reading_process_failed", path=stretch.path, error=str(error))
            return list(read_stretch(stretch, lines_for(stretch)))

    def _answer(self, stretch: Stretch) -> Iterator[Chunk]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError("it could not be started")
        process.stdin.write(msgspec.json.encode(stretch) + b"\n")
        process.stdin.flush()
        while length := int.from_bytes(_exactly(process.stdout, LENGTH_BYTES)):
            yield self._decoder.decode(_exactly(process.stdout, length))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("it ended")
    return data
