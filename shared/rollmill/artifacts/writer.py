"""Appends lines to a file with group commit: one writer, whole lines, one `fdatasync` for all that came meanwhile.

Lines are written in the turn of the event loop in which they come, so that the end of the process loses none of them,
and synced together a moment later, so that a power failure loses the last moment at most.
"""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import BinaryIO, Self

import structlog

from rollmill.artifacts.owner import forget_owner, note_owner, owner_of
from rollmill.artifacts.reader import whole_lines_size
from rollmill.errors import ConflictError, RollmillError

log = structlog.get_logger(__name__)


class StorageError(RollmillError):
    """A run's file could not be written: the disk is full, the volume is read-only, or it failed."""

    slug, title, status = "storage-failed", "Storage failed", 507


class JsonlWriter:
    """The one owner of a JSONL file. A line is settled once the sync that covers it is done.

    Args:
        path: created when missing; a torn last line is dropped on open.
        interval_seconds: longest time that a line waits for its sync to begin.
        max_unsynced_bytes: `append` waits when this much is not yet synced.
        on_commit: called after each sync with the number of lines settled so far.
    """

    def __init__(
        self,
        path: Path,
        *,
        interval_seconds: float = 0.05,
        max_unsynced_bytes: int = 8 * 1024 * 1024,
        on_commit: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.committed_lines = 0
        """Lines settled by this writer."""
        self._interval = interval_seconds
        self._max_unsynced = max_unsynced_bytes
        self._on_commit = on_commit
        self._fd = -1
        self._size = self._synced_size = 0
        """Of the file: what was written of it, and what was synced."""
        self._buffer = bytearray()  # not the lines themselves: orjson's results hold 4 KiB each, however short
        self._due: asyncio.Handle | None = None
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._done = asyncio.Condition()
        self._error: StorageError | None = None
        self._task: asyncio.Task[None] | None = None
        self._syncing: asyncio.Future[None] | None = None
        self._appended_lines = 0

    async def __aenter__(self) -> Self:
        """Open the file and take its lock.

        Raises:
            ConflictError: another process writes this file.
            StorageError: it cannot be opened.
        """
        opening = asyncio.ensure_future(asyncio.to_thread(open_for_append, self.path))
        try:
            self._fd, self._size = await asyncio.shield(opening)
            self._synced_size = self._size
        except asyncio.CancelledError:  # the thread cannot be stopped, and what it opens holds the lock
            await asyncio.wait([opening])
            if opening.exception() is None:
                close_appended(self.path, opening.result()[0])
            raise
        self._task = asyncio.create_task(self._commit_loop(), name=f"commit {self.path.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is left and close; a storage error surfaces unless another error already does."""
        try:
            await self.flush()
        except StorageError:
            if error is None:
                raise
        finally:
            closing = asyncio.ensure_future(self._close())
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:  # the file would stay open, and locked
                await asyncio.wait([closing])
                raise

    async def _close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._syncing is not None:  # a thread may still be at it when a cancellation came
            await asyncio.wait([self._syncing])
        self._write_out()
        close_appended(self.path, self._fd)

    async def append(self, line: bytes) -> None:
        """Add one line, given without its newline.

        Raises:
            StorageError: an earlier write failed; nothing is accepted any more.
        """
        if self._error is not None:
            raise self._error
        self._buffer += line
        self._buffer += b"\n"
        self._appended_lines += 1
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._write_out)
            self._work.set()
        if self._unsynced > self._max_unsynced:
            self._hurry.set()
            async with self._done:
                await self._done.wait_for(lambda: self._unsynced <= self._max_unsynced or self._error is not None)

    @property
    def _unsynced(self) -> int:
        return self._size + len(self._buffer) - self._synced_size

    async def flush(self) -> None:
        """Return once everything that was appended is settled.

        Raises:
            StorageError: it could not be written.
        """
        appended = self._appended_lines  # lines that come while this waits are not waited for
        self._hurry.set()
        async with self._done:
            await self._done.wait_for(lambda: self.committed_lines >= appended or self._error is not None)
        if self._error is not None:
            raise self._error

    def _write_out(self) -> None:
        """Write what has come since the last time, whole or not at all."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        data, self._buffer = self._buffer, bytearray()
        if not data or self._error is not None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            self._size += len(data)
        except OSError as error:
            self._fail(error, keep=self._size)

    async def _commit_loop(self) -> None:
        while self._error is None:
            await self._work.wait()
            await self._window()
            self._write_out()
            self._work.clear()
            self._hurry.clear()
            if self._error is None:
                await self._commit()
            async with self._done:
                self._done.notify_all()
            if self._error is None:
                self._tell()

    async def _commit(self) -> None:
        lines, size = self._appended_lines, self._size
        try:
            self._syncing = asyncio.ensure_future(asyncio.to_thread(_sync, self._fd))
            await asyncio.shield(self._syncing)
            self.committed_lines, self._synced_size = lines, size
        except OSError as error:
            self._fail(error, keep=self._synced_size)

    def _fail(self, error: OSError, *, keep: int) -> None:
        """Accept nothing any more, and leave no half line, or line that may be lost, behind."""
        self._error = StorageError(f"{self.path}: {error.strerror or error}")
        with suppress(OSError):
            os.ftruncate(self._fd, keep)
        self._work.set()
        self._hurry.set()

    def _tell(self) -> None:
        """Call `on_commit`; whatever is wrong with the listener must not stop the writing."""
        if self._on_commit is None:
            return
        try:
            self._on_commit(self.committed_lines)
        except Exception:
            log.exception("commit_listener_failed", path=str(self.path))

    async def _window(self) -> None:
        """Let more lines gather, unless somebody waits for the commit."""
        try:
            async with asyncio.timeout(self._interval):
                await self._hurry.wait()
        except TimeoutError:
            pass


def open_for_append(path: Path) -> tuple[int, int]:
    """Open a file for appending, lock it and drop a torn last line.

    Returns:
        The descriptor, and the size of the file in bytes.

    Raises:
        ConflictError: another process writes this file.
        StorageError: it cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still_at(path, fd):
            raise BlockingIOError  # who replaced it meanwhile writes the one that is there now
        note_owner(path)
        size = whole_lines_size(path)
        os.ftruncate(fd, size)
    except BlockingIOError:
        os.close(fd)
        raise ConflictError(f"{path}: {owner_of(path)} is writing this file; wait for it, or end it") from None
    except OSError as error:
        os.close(fd)
        raise StorageError(f"{path}: {error.strerror}") from None
    return fd, size


def close_appended(path: Path, fd: int) -> None:
    """Close a file that `open_for_append` opened: its lock goes with it."""
    forget_owner(path)
    os.close(fd)


def _is_still_at(path: Path, fd: int) -> bool:
    """Say whether an open file is the one that its path names, and not one that was deleted after it was opened."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file's content so that a reader, or a crash, sees the old or the new one and nothing between.

    Raises:
        StorageError: it cannot be written.
    """
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"{path}: {error.strerror}") from None


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends without an error.

    Raises:
        StorageError: it cannot be written; what was there before is still there.
    """
    temporary = _temporary(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # not there any more, or its folder never was
            temporary.unlink()


def _temporary(path: Path) -> Path:
    """A name that no other thread writes to, here or in another process."""
    return path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}.tmp")


def _sync(fd: int) -> None:
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    sync(fd)
