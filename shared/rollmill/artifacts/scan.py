"""Reads the columns of a JSONL file, stretch by stretch; large files in several processes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TypeAlias

import msgspec

from rollmill.artifacts.chunks import Chunk
from rollmill.artifacts.input_lines import InputLines
from rollmill.artifacts.rollout_lines import RolloutLines
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.contracts.json import loads

Kind: TypeAlias = Literal["rollouts", "inputs"]

_LINES = 2000
_BYTES = 8 * 1024 * 1024
_BUFFER = 1024 * 1024


class Stretch(msgspec.Struct, frozen=True):
    """A part of a file: the lines that begin within it."""

    path: str
    start: int
    stop: int
    size: int
    """Size of the file as it was found; what was appended since is not there."""
    kind: Kind = "rollouts"
    answers: AnswerFields = AnswerFields()


class Lines(Protocol):
    """Turns lines into chunks."""

    def chunk(self, lines: Sequence[bytes], offsets: Sequence[int]) -> Chunk:
        """Return the columns of lines, none of them blank, that begin at the offsets."""


def lines_for(stretch: Stretch) -> Lines:
    """Return what reads the lines of a stretch, and of others like it."""
    return RolloutLines(stretch.answers) if stretch.kind == "rollouts" else InputLines()


def read_stretch(stretch: Stretch, reader: Lines) -> Iterator[Chunk]:
    """Yield the columns of a stretch; after a chunk with a fault there is none.

    A last line without a newline counts when it is whole JSON; else it was torn, and is left out.

    Raises:
        OSError: the file cannot be read.
    """
    lines: list[bytes] = []
    offsets: list[int] = []
    held = end = 0
    with Path(stretch.path).open("rb", buffering=_BUFFER) as file:
        for offset, line in _lines(file, stretch):
            lines.append(line)
            offsets.append(offset)
            held += len(line)
            end = offset + len(line)
            if len(lines) == _LINES or held >= _BYTES:
                chunk = reader.chunk(lines, offsets)
                chunk.end = end
                yield chunk
                if chunk.fault:
                    return
                lines, offsets, held = [], [], 0
    if lines:
        chunk = reader.chunk(lines, offsets)
        chunk.end = end
        yield chunk


def _lines(file: BinaryIO, stretch: Stretch) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that begin within a stretch and are not blank, with their offsets."""
    position = stretch.start
    if position:
        file.seek(position - 1)
        position += len(file.readline()) - 1
    while position < stretch.stop:
        line = file.readline()[: stretch.size - position]
        if not line or not (line.endswith(b"\n") or _is_whole(line)):
            return
        if not line.isspace():
            yield position, line
        position += len(line)


def _is_whole(line: bytes) -> bool:
    try:
        loads(line)
    except ValueError:
        return False
    return True  # half an object is never valid JSON
