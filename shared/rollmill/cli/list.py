import asyncio
import importlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rollmill.cli.console import emit, emit_json, table
from rollmill.cli.readme import first_sentence, readme_of
from rollmill.errors import ConfigError

if TYPE_CHECKING:
    from rollmill.contracts.services import Instance

ListLine = dict[str, str | int]

_FOLDERS: Final = {"agents": "agent", "resources": "resources", "models": "model"}
_OWN_KINDS: Final = ("head", "collector", "profiler")
_SHOWN: Final = 80


class ServiceKinds(StrEnum):
    """What can be listed."""

    agents = "agents"
    resources = "resources"
    models = "models"


def list_services(
    kinds: Annotated[ServiceKinds | None, typer.Argument(help="Only these.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="List the services of this topology.")] = None,
    head: Annotated[str | None, typer.Option(help="List the live services of this head.")] = None,
) -> None:
    """List the services that are installed, with an example of each environment, or those of a topology or a head."""
    if config is not None and head is not None:
        raise typer.BadParameter("give either --config or --head")
    if config is not None:
        lines = _of_topology(config)
    elif head is not None:
        lines = _of_head(head)
    else:
        lines = installed()
    if kinds is not None:
        lines = [line for line in lines if line["kind"] == _FOLDERS[kinds.value]]
    if as_json:
        emit_json(lines)
    elif lines:
        columns = [key for key in lines[0] if any(line[key] != "" for line in lines)]
        emit(table([key.upper() for key in columns], [[_short(line[key]) for key in columns] for line in lines]))


def installed() -> list[ListLine]:
    """Describe the installed services; those whose folder tells enough are not imported."""
    from rollmill.config.loading import known_services

    return [_installed(name, target) for name, target in known_services().items()]


def _installed(name: str, target: str) -> ListLine:
    module = target.partition(":")[0]
    readme = readme_of(module)
    kind, description = _kind_from_path(module), readme.summary
    if not kind or not description:
        from rollmill.config.loading import find_service

        try:
            definition = find_service(name)
        except ConfigError as error:
            description = description or f"cannot be used: {error.detail}"
        else:
            kind = kind or definition.kind or ""
            description = description or _docstring(target)
    return {
        "name": name,
        "kind": kind or "unknown",
        "example": readme.example,
        "description": description,
        "install": f"pip install '{readme.missing}'" if readme.missing else "",
    }


def _kind_from_path(module: str) -> str:
    for part in module.split("."):
        if part in _FOLDERS:
            return _FOLDERS[part]
        if part in _OWN_KINDS:
            return part
    return ""


def _docstring(target: str) -> str:
    module, _, attribute = target.partition(":")
    found: object = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return first_sentence(getattr(found, "__doc__", None) or "")


def _of_topology(config: Path) -> list[ListLine]:
    from rollmill.config.topology import load_topology

    services = load_topology(config).services
    return [
        {"name": name, "kind": spec.kind, "use": spec.use, "replicas": spec.replicas} for name, spec in services.items()
    ]


def _of_head(head: str) -> list[ListLine]:
    from rollmill.cli.status import live_services
    from rollmill.local.connection import find_connection

    by_name: dict[str, list[Instance]] = {}
    for instance in asyncio.run(live_services(find_connection(head))):
        by_name.setdefault(instance.name, []).append(instance)
    return [
        {"name": name, "kind": instances[0].kind, "version": instances[0].version, "replicas": len(instances)}
        for name, instances in by_name.items()
    ]


def _short(cell: str | int) -> str:
    text = str(cell)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
