"""Makes the folder of a new environment or agent, from the files under `templates`."""

import importlib.util
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final, Literal, TypeAlias

from rollmill.errors import ConflictError, InputError

ScaffoldKind: TypeAlias = Literal["resources", "agent"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,49}")
_IN_THE_TOPOLOGY: Final = ("policy", "string_match")


def write_scaffold(kind: ScaffoldKind, name: str, parent: Path) -> list[Path]:
    """Make a folder of this name that runs and passes its test.

    Args:
        kind: what it is to be.
        name: of the folder, its module and its service.
        parent: where the folder goes; made when it is not there.

    Returns:
        The files.

    Raises:
        InputError: the name cannot be one; says why.
        ConflictError: there is something of this name already; nothing is changed.
    """
    check_name(name)
    folder = parent / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConflictError(f"{folder} exists; choose another name, or another --dir") from None
    values = {"name": name, "title": "".join(part.capitalize() for part in name.split("_"))}
    written = []
    for template in sorted(files("rollmill").joinpath("templates", kind).iterdir(), key=lambda file: file.name):
        path = folder / template.name.removesuffix(".txt").replace("module", name)
        path.write_text(Template(template.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
        written.append(path)
    return written


def check_name(name: str) -> None:
    """Refuse a name that could not be a module's, or would hide another module.

    Raises:
        InputError: says what is wrong with it.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"{name!r}: a name has small letters, digits and _, and begins with a letter, at most 50")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise InputError(f"{name!r} is a word of the Python language; choose another name")
    if name in _IN_THE_TOPOLOGY:
        raise InputError(f"{name!r} is the name of another service of the new topology; choose another name")
    if name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None:
        raise InputError(f"there is a Python module {name!r} already, which yours would hide; choose another name")
