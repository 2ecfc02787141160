"""What a service's README tells the catalogue: what it is, the extra that it needs, and a topology to try it with."""

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_EXTRA: Final = re.compile(r"`(?P<package>[A-Za-z0-9._-]+)\[(?P<extra>[A-Za-z0-9._-]+)\]`")
_EXAMPLE: Final = re.compile(r"\bexamples/[\w./-]+\.yaml\b")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Readme:
    """The README beside a service's module."""

    text: str = ""
    """Empty when there is none."""

    @property
    def summary(self) -> str:
        """Its first sentence."""
        return first_sentence(self.text)

    @property
    def example(self) -> str:
        """The first example topology that it names, else nothing."""
        found = _EXAMPLE.search(self.text)
        return found[0] if found else ""

    @property
    def missing(self) -> str:
        """The first extra that it names and that is not installed, as `package[extra]`."""
        for found in _EXTRA.finditer(self.text):
            if _lacks(found["package"], found["extra"]):
                return found[0].strip("`")
        return ""


def readme_of(module: str) -> Readme:
    """Read the README next to a service's module; finding it imports only its parent packages."""
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a parent package may raise anything at all; whoever uses the service is told what
        return Readme()
    if spec is None or spec.origin is None:
        return Readme()
    path = Path(spec.origin).with_name("README.md")
    return Readme(path.read_text(encoding="utf-8", errors="replace") if path.is_file() else "")


def first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph that is no heading."""
    paragraphs = (part.strip() for part in text.split("\n\n"))
    prose = next((part for part in paragraphs if part and not part.startswith(("#", "!", "<", "[!"))), "")
    return " ".join(prose.split()).partition(". ")[0].rstrip(".")


def _lacks(package: str, extra: str) -> bool:
    """Say whether a package is installed without what one of its extras asks for."""
    try:
        requirements = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    marker = re.compile(rf"\bextra\s*==\s*['\"]{re.escape(extra)}['\"]")
    names = [_NAME.match(line) for line in requirements if marker.search(line.partition(";")[2])]
    return not all(_installed(name[0]) for name in names if name)


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
