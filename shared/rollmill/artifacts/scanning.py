import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rollmill.artifacts.chunks import Chunk
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.artifacts.scan import Kind, Stretch, lines_for, read_stretch
from rollmill.artifacts.scan_processes import read_in_processes
from rollmill.errors import InputError

STRETCH_BYTES = 16 * 1024 * 1024
PARALLEL_BYTES = 4 * STRETCH_BYTES
"""Less than this is read in this process: starting others would take longer."""

_BLOCK = 1024 * 1024


@contextmanager
def scan(
    path: Path,
    *,
    start: int = 0,
    kind: Kind = "rollouts",
    answers: AnswerFields | None = None,
    processes: int | None = None,
) -> Iterator[Iterator[Chunk]]:
    """Read the columns of a JSONL file as it stands; iterating raises what is wrong with it.

    Large files are read by processes, which begin when this is entered.

    Args:
        path: what is appended from now on is not read; a last line without a newline counts if it is whole.
        start: an offset at which a line begins.
        kind: of input rows, only keys and agents are read.
        answers: where the answers of rollouts are.
        processes: most processes; one for each usable core when not given.

    Raises:
        InputError: the file cannot be read, or a line is no row; names file and line.
    """
    size = file_size(path)
    whole = Stretch(str(path), start, size, size, kind, answers or AnswerFields())
    count = processes or usable_cores()
    if count == 1 or size - start < PARALLEL_BYTES:
        yield _checked(read_stretch(whole, lines_for(whole)), path)
        return
    with read_in_processes(_parts(whole), count) as chunks:
        yield _checked(chunks, path)


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def file_size(path: Path) -> int:
    """Return the size of a file in bytes.

    Raises:
        InputError: there is no such file.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _parts(whole: Stretch) -> list[Stretch]:
    starts = range(whole.start, whole.stop, STRETCH_BYTES)
    return [
        Stretch(whole.path, start, min(start + STRETCH_BYTES, whole.stop), whole.size, whole.kind, whole.answers)
        for start in starts
    ]


def _checked(chunks: Iterable[Chunk], path: Path) -> Iterator[Chunk]:
    try:
        for chunk in chunks:
            if chunk.fault is not None:
                offset, reason = chunk.fault
                raise InputError(f"{path}:{_line_number(path, offset)}: {reason}")
            yield chunk
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _line_number(path: Path, offset: int) -> int:
    """Return the number, from 1, of the line that begins at an offset."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(offset, _BLOCK))):
            number += block.count(b"\n")
            offset -= len(block)
    return number
