import gzip
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from rollmill.errors import NotFoundError

INDEX: Final = "index.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class Asset:
    """A file of the page."""

    body: bytes
    media_type: str

    @cached_property
    def packed(self) -> bytes:
        """The body, compressed with gzip."""
        return gzip.compress(self.body, mtime=0)

    @cached_property
    def etag(self) -> str:
        """Tells this content from any other."""
        return f'"{sha256(self.body).hexdigest()[:32]}"'


class Assets:
    """The files of the page, which are part of this package; each is read once."""

    def __init__(self) -> None:
        self._root = files("rollmill_services.head") / "page"
        self._read: dict[str, Asset] = {}

    def get(self, name: str) -> Asset:
        """Return a file.

        Args:
            name: its path below `page`, such as `vendor/preact.js`.

        Raises:
            NotFoundError: the page has no such file.
        """
        if name not in self._read:
            self._read[name] = self._open(name)
        return self._read[name]

    def _open(self, name: str) -> Asset:
        place: Traversable = self._root
        for part in name.split("/"):
            found = next((entry for entry in place.iterdir() if entry.name == part), None) if place.is_dir() else None
            if found is None:
                raise NotFoundError(f"the page has no file {name[:200]!r}")
            place = found
        kind = _TYPES.get("." + place.name.rpartition(".")[2])
        if kind is None or not place.is_file():
            raise NotFoundError(f"the page has no file {name[:200]!r}")
        return Asset(place.read_bytes(), kind)
