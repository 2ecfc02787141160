import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.console import emit, tell


class NewKinds(StrEnum):
    """What a folder can be made for."""

    resources = "resources"
    agent = "agent"


def init(
    kind: Annotated[NewKinds, typer.Argument(help="An environment, or an agent.")],
    name: Annotated[str, typer.Argument(help="Name of the folder, its module and its service.")],
    parent: Annotated[Path, typer.Option("--dir", help="Where the folder goes.")] = Path(),
) -> None:
    """Make the folder of a new environment or agent: it runs and has a passing test. Nothing is ever overwritten."""
    from rollmill.scaffold import write_scaffold

    written = write_scaffold(kind.value, name, parent)
    tell(f"made {', '.join(map(str, written))}")
    tell("next:")
    emit(f"cd {shlex.quote(str(parent / name))} && rollmill validate -c topology.yaml")
    emit("python -m pytest")
    emit("rollmill collect -c topology.yaml --output results/first.jsonl")
