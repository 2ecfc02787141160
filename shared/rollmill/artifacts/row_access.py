from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rollmill.contracts.json import loads
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


class RowFile:
    """A JSONL file whose rows are read by their offsets. Used as a context manager.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            InputError: it cannot be read.
        """
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def at(self, offset: int) -> Row:
        """Return the row whose line begins at an offset.

        Raises:
            InputError: there is none any more.
        """
        try:
            self._file.seek(offset)
            row = loads(self._file.readline())
        except (OSError, ValueError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{self._path}: the file was changed while it was read")
        return row


def read_rows(path: Path, offsets: Mapping[str, int]) -> dict[str, Row]:
    """Return the rows at some offsets, by the same names.

    Raises:
        InputError: the file cannot be read, or a row is not there any more.
    """
    if not offsets:
        return {}
    with RowFile(path) as rows:
        return {name: rows.at(offset) for name, offset in offsets.items()}
