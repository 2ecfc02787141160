"""Who writes a file: a note beside it, `.x.jsonl.lock`, for the message of whoever is refused.

The lock itself is the `flock` of the file, which the system takes away from a process that dies. A note that such a
process left behind proves nothing, and is not shown.
"""

import os
import socket
from contextlib import suppress
from pathlib import Path

from rollmill.contracts.json import dumps, loads


def note_owner(path: Path) -> None:
    """Note that this process writes the file. The lock is held already; without the note it holds all the same."""
    with suppress(OSError):
        _note(path).write_bytes(dumps({"pid": os.getpid(), "host": socket.gethostname()}))


def forget_owner(path: Path) -> None:
    """Remove the note, while the lock is still held."""
    with suppress(OSError):
        _note(path).unlink()


def owner_of(path: Path) -> str:
    """Say who writes a file that is locked: `process 123 on host`, or `another process` when that cannot be told."""
    try:
        told = loads(_note(path).read_bytes())
        pid, host = int(told["pid"]), str(told["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    if host == socket.gethostname() and not _is_alive(pid):
        return "another process"
    return f"process {pid} on {host}"


def _note(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError, ValueError):
        return False
    except PermissionError:  # somebody else's, and alive
        return True
    return pid > 0
