from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from rollmill.contracts.json import loads
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


class RowFile:
    """A JSONL file whose rows are read by their offsets; opened with the first one. Used as a context manager.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def at(self, offset: int) -> Row:
        """Return the row whose line begins at an offset.

        Raises:
            InputError: the file cannot be read, or there is no row any more.
        """
        try:
            if self._file is None:
                self._file = self._path.open("rb")
            self._file.seek(offset)
            row = loads(self._file.readline())
        except (OSError, ValueError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{self._path}: the file was changed while it was read")
        return row
