import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rollmill.artifacts.owner import note_owner, owner_of
from rollmill.artifacts.writer import JsonlWriter, close_appended, open_for_append
from rollmill.contracts.json import dumps, loads
from rollmill.errors import ConflictError


def note(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


async def dead_process() -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    return process.pid


def test_the_note_names_process_and_host_while_the_file_is_held(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    fd, _ = open_for_append(path)
    assert loads(note(path).read_bytes()) == {"pid": os.getpid(), "host": socket.gethostname()}
    assert owner_of(path) == f"process {os.getpid()} on {socket.gethostname()}"
    close_appended(path, fd)
    assert not note(path).exists()


async def test_a_note_left_by_a_process_that_died_locks_nothing_and_is_not_shown_as_live(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    note(path).write_bytes(dumps({"pid": await dead_process(), "host": socket.gethostname()}))
    assert owner_of(path) == "another process"
    async with JsonlWriter(path) as writer:
        assert owner_of(path).startswith(f"process {os.getpid()} ")
        await writer.append(b"a")


async def test_a_holder_that_is_killed_leaves_a_file_that_can_be_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    code = (
        "import sys\nfrom pathlib import Path\nfrom rollmill.artifacts.writer import open_for_append\n"
        "open_for_append(Path(sys.argv[1]))\nprint('locked', flush=True)\nsys.stdin.read()"
    )
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"locked\n"
    with pytest.raises(ConflictError, match=f"process {holder.pid} on {socket.gethostname()} is writing"):
        open_for_append(path)
    holder.kill()
    await holder.wait()
    assert note(path).exists()
    assert owner_of(path) == "another process"
    close_appended(path, open_for_append(path)[0])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x", "host": 1}', b'{"pid": 1}', b'{"pid": -1e400}'])
def test_a_note_that_cannot_be_read_is_no_note(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.jsonl"
    note(path).write_bytes(content)
    assert owner_of(path) == "another process"


def test_an_owner_on_another_host_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    note(path).write_bytes(dumps({"pid": 7, "host": "elsewhere"}))
    assert owner_of(path) == "process 7 on elsewhere"


def test_a_note_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    note_owner(tmp_path / "missing" / "x.jsonl")
    assert owner_of(tmp_path / "missing" / "x.jsonl") == "another process"
