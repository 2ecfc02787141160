"""Prints what pyproject.toml depends on, for a layer of the image that changes only with it.

python deploy/requirements.py math,otel
"""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print one requirement a line; an extra that does not exist ends with the names of those that do."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    known = project["optional-dependencies"]
    extras = [extra for extra in sys.argv[1].split(",") if extra]
    if unknown := [extra for extra in extras if extra not in known]:
        raise SystemExit(f"EXTRAS: pyproject.toml has no {', '.join(unknown)}; it has {', '.join(known)}")
    sys.stdout.write("\n".join([*project["dependencies"], *(line for extra in extras for line in known[extra])]))


if __name__ == "__main__":
    main()
