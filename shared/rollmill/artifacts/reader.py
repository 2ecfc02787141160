from collections.abc import Iterator
from pathlib import Path

from rollmill.contracts.json import JsonObject, loads
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


def iter_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the non-empty lines of a file with their numbers, from 1, without the newline.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                stripped = line.strip()
                if stripped:
                    yield number, stripped
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def parse_line(path: Path, number: int, line: bytes) -> JsonObject:
    """Parse one line of a JSONL file.

    Raises:
        InputError: it is not a JSON object; names file and line.
    """
    try:
        value = loads(line)
    except ValueError as error:
        raise InputError(f"{path}:{number}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}:{number}: a row must be a JSON object, got {type(value).__name__}")
    return value


def read_jsonl(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a JSONL file, one in memory at a time.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object; names file and line.
    """
    path = Path(path)
    for number, line in iter_lines(path):
        yield parse_line(path, number, line)


def read_rollouts(path: str | Path) -> Iterator[Row]:
    """Yield the finished rollouts of a run, leaving out a last line that is still being written.

    Raises:
        InputError: the file cannot be read, or a line is not a JSON object; names file and line.
    """
    path = Path(path)
    complete = whole_lines_size(path)
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                offset += len(line)
                if offset > complete:
                    return
                if stripped := line.strip():
                    yield parse_line(path, number, stripped)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def iter_finished(path: Path) -> Iterator[tuple[int, bytes, Row]]:
    """Yield the rows of a file that may have been torn at its end, each with its byte offset and its own line.

    A last line without a newline counts when it is a whole row; else it was torn, and is left out.

    Raises:
        InputError: the file cannot be read, or another line is not a JSON object; names file and line.
    """
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                stripped = line.strip()
                try:
                    row = parse_line(path, number, stripped) if stripped else None
                except InputError:
                    if line.endswith(b"\n"):
                        raise
                    return
                if row is not None:
                    yield offset, stripped, row
                offset += len(line)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def whole_lines_size(path: Path) -> int:
    """Return the size in bytes of a file up to and with its last newline; 0 when it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            position = size
            while position > 0:
                start = max(0, position - 65536)
                file.seek(start)
                found = file.read(position - start).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                position = start
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    return 0
