import asyncio
import errno
import os
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from rollmill.artifacts.writer import JsonlWriter, StorageError, open_for_append, write_atomically
from rollmill.contracts.json import dumps
from rollmill.errors import ConflictError

NEVER = 3600.0
"""Seconds; a writer with this interval commits only when it is told to hurry."""

HOLD_LOCK = """
import sys
from pathlib import Path
from rollmill.artifacts.writer import open_for_append
open_for_append(Path(sys.argv[1]))
sys.stdout.write("locked\\n"); sys.stdout.flush()
sys.stdin.read()
"""

FILL_DISK = """
import asyncio, resource, sys
from pathlib import Path
from rollmill.artifacts.writer import JsonlWriter, StorageError

async def fill(path):
    appended = 0
    async with JsonlWriter(path, interval_seconds=0.001) as writer:
        while True:
            await writer.append(b"x" * 99)
            appended += 1
            if appended % 7 == 0:
                await writer.flush()

resource.setrlimit(resource.RLIMIT_FSIZE, (10_050, 10_050))
try:
    asyncio.run(fill(Path(sys.argv[1])))
except StorageError as error:
    sys.stdout.write(f"{error.status} {error}")
"""


async def test_lines_are_on_disk_after_a_flush(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "x.jsonl"
    async with JsonlWriter(path, interval_seconds=NEVER) as writer:
        await writer.append(b"a")
        await writer.append(b"b")
        await writer.flush()

        assert path.read_bytes() == b"a\nb\n"
        assert writer.committed_lines == 2


async def test_lines_are_settled_by_themselves_within_the_interval(tmp_path: Path) -> None:
    committed = asyncio.Event()
    path = tmp_path / "x.jsonl"
    async with JsonlWriter(path, interval_seconds=0.01, on_commit=lambda _: committed.set()) as writer:
        await writer.append(b"a")
        await committed.wait()

        assert path.read_bytes() == b"a\n"


async def test_lines_that_come_together_are_one_commit(tmp_path: Path) -> None:
    commits: list[int] = []
    async with JsonlWriter(tmp_path / "x.jsonl", interval_seconds=NEVER, on_commit=commits.append) as writer:
        for _ in range(100):
            await writer.append(b"a")
        await writer.flush()
        await writer.append(b"b")

    assert commits == [100, 101]


async def test_a_flush_does_not_wait_for_lines_that_come_later(tmp_path: Path) -> None:
    async with JsonlWriter(tmp_path / "x.jsonl", interval_seconds=0.0) as writer:

        async def keep_appending() -> None:
            while True:
                await writer.append(b"more")
                await asyncio.sleep(0)

        await writer.append(b"first")
        busy = asyncio.create_task(keep_appending())
        await asyncio.wait_for(writer.flush(), 30)
        busy.cancel()
        await asyncio.wait([busy])


async def test_a_flush_of_nothing_returns_and_an_unused_writer_leaves_an_empty_file(tmp_path: Path) -> None:
    async with JsonlWriter(tmp_path / "x.jsonl") as writer:
        await writer.flush()

    assert (tmp_path / "x.jsonl").read_bytes() == b""


async def test_leaving_writes_what_is_left_and_later_writers_append(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for line in (b"a", b"b"):
        async with JsonlWriter(path, interval_seconds=NEVER) as writer:
            await writer.append(line)

    assert path.read_bytes() == b"a\nb\n"


async def test_a_torn_last_line_is_dropped_on_open(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}\n{"a":')
    async with JsonlWriter(path) as writer:
        assert path.read_bytes() == b'{"a":1}\n'
        await writer.append(b'{"a":2}')

    assert path.read_bytes() == b'{"a":1}\n{"a":2}\n'


async def test_a_listener_that_breaks_does_not_stop_the_writing(tmp_path: Path) -> None:
    def broken(_: int) -> None:
        raise RuntimeError("listener")

    path = tmp_path / "x.jsonl"
    async with JsonlWriter(path, on_commit=broken) as writer:
        await writer.append(b"a")
        await asyncio.wait_for(writer.flush(), 30)
        await writer.append(b"b")

    assert path.read_bytes() == b"a\nb\n"


async def test_a_second_writer_of_the_same_file_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    async with JsonlWriter(path) as writer:
        await writer.append(b"a")
        with pytest.raises(
            ConflictError, match=rf"process {os.getpid()} on {socket.gethostname()} is writing this file"
        ):
            await JsonlWriter(path).__aenter__()

    assert path.read_bytes() == b"a\n"
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_a_file_that_was_deleted_while_it_was_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.jsonl"
    opened = os.open

    def open_and_lose(file: Path, flags: int, mode: int) -> int:
        descriptor = opened(file, flags, mode)
        path.unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    with pytest.raises(ConflictError, match="another process"):
        open_for_append(path)


async def test_a_file_that_another_process_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"a\ntorn")
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_LOCK, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"locked\n"
    with path.open("ab") as other:
        other.write(b"halfway")

    with pytest.raises(ConflictError, match=f"process {holder.pid} on "):
        await JsonlWriter(path).__aenter__()
    assert path.read_bytes() == b"a\nhalfway"

    await holder.communicate(b"")
    async with JsonlWriter(path):
        assert path.read_bytes() == b"a\n"


async def test_a_full_disk_surfaces_and_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FILL_DISK, str(path), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    told, errors = await process.communicate()

    assert errors == b""
    assert told.decode().startswith(f"507 {path}: ")
    lines = path.read_bytes().split(b"\n")
    assert lines.pop() == b""
    assert len(lines) >= 90
    assert set(lines) == {b"x" * 99}


async def test_a_path_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "file" / "x.jsonl"):
        with pytest.raises(StorageError, match=str(path)):
            await JsonlWriter(path).__aenter__()


async def test_append_waits_when_too_much_is_not_yet_synced(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    async with JsonlWriter(path, interval_seconds=NEVER, max_unsynced_bytes=10) as writer:
        await writer.append(b"12345")
        assert path.read_bytes() == b""
        await writer.append(b"67890")

        assert path.read_bytes() == b"12345\n67890\n"


async def test_what_was_appended_is_in_the_file_one_turn_later_so_the_end_of_the_process_loses_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    async with JsonlWriter(path, interval_seconds=NEVER) as writer:
        for number in range(3):
            await writer.append(b"%d" % number)
            await writer.append(b"%d" % number)
            await asyncio.sleep(0)
            assert path.read_bytes().split() == [b"%d" % seen for seen in range(number + 1) for _ in range(2)]
        assert writer.committed_lines == 0


async def test_lines_whose_sync_fails_are_taken_back_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "x.jsonl"
    writer = await JsonlWriter(path, interval_seconds=NEVER).__aenter__()
    await writer.append(b"safe")
    await writer.flush()
    monkeypatch.setattr(os, "fdatasync", failing)
    await writer.append(b"lost")

    with pytest.raises(StorageError, match="Input/output error"):
        await writer.flush()
    assert path.read_bytes() == b"safe\n"
    with pytest.raises(StorageError):
        await writer.append(b"refused")
    with pytest.raises(StorageError):
        await writer.__aexit__(None, None, None)
    assert path.read_bytes() == b"safe\n"


async def test_a_hundred_megabytes_pass_through_a_small_buffer(tmp_path: Path) -> None:
    path, line = tmp_path / "x.jsonl", b"x" * 49_999
    tracemalloc.start()
    try:
        async with JsonlWriter(path, max_unsynced_bytes=1_000_000) as writer:
            for _ in range(2_000):
                await writer.append(line)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert path.stat().st_size == 100_000_000
    assert peak < 8_000_000


async def test_short_lines_that_wait_for_a_slow_disk_cost_no_more_than_their_length(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        async with JsonlWriter(tmp_path / "x.jsonl", interval_seconds=NEVER) as writer:
            for number in range(20_000):
                await writer.append(dumps({"number": number}))
            waiting, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert waiting < 2_000_000


async def test_cancelling_whoever_appends_keeps_whole_lines_and_frees_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    async def work(begun: asyncio.Event) -> None:
        async with JsonlWriter(path, interval_seconds=0.0) as writer:
            while True:
                await writer.append(b"y" * 1000)
                begun.set()
                await asyncio.sleep(0)

    for _ in range(5):
        begun = asyncio.Event()
        task = asyncio.create_task(work(begun))
        await begun.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert set(path.read_bytes().splitlines()) == {b"y" * 1000}
    async with JsonlWriter(path):
        pass


async def test_cancelling_at_any_moment_of_opening_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    async def work() -> None:
        async with JsonlWriter(path):
            await asyncio.sleep(NEVER)

    for turns in range(8):
        task = asyncio.create_task(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with JsonlWriter(path):
            pass


async def test_an_error_of_the_work_is_not_hidden_by_the_closing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    async def work() -> None:
        async with JsonlWriter(path, interval_seconds=NEVER) as writer:
            await writer.append(b"a")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await work()
    assert path.read_bytes() == b"a\n"


def test_an_atomic_write_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write_atomically(path, b"one", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomically(path, b"two")

    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_an_atomic_write_that_fails_says_where_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    (target / "inside").mkdir(parents=True)
    with pytest.raises(StorageError, match="folder"):
        write_atomically(target, b"x")

    assert list(tmp_path.iterdir()) == [target]


def test_opening_tells_the_size_of_the_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"abc\nde")
    fd, size = open_for_append(path)
    os.close(fd)

    assert size == 4


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_while_it_closes_leaves_nothing_locked(tmp_path: Path, turns: int) -> None:
    path, entered = tmp_path / "x.jsonl", asyncio.Event()

    async def write() -> None:
        async with JsonlWriter(path):
            entered.set()

    task = asyncio.create_task(write())
    await entered.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])

    async with JsonlWriter(path) as writer:
        await writer.append(b"{}")
    assert path.read_bytes() == b"{}\n"
