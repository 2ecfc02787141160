from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.cli.console import emit, emit_json, table

if TYPE_CHECKING:
    from rollmill.cli.validating import Material
    from rollmill.config.specs import Topology
    from rollmill.testing.conformance import Check


def validate(  # noqa: PLR0913 (one parameter for each option of the command)
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Topology file.")] = None,
    url: Annotated[str | None, typer.Option(help="A resources server instead, in whatever language.")] = None,
    service: Annotated[str | None, typer.Option(help="Only this environment of the topology.")] = None,
    topology_only: Annotated[bool, typer.Option("--topology-only", help="Start no environment.")] = False,
    tasks: Annotated[Path | None, typer.Option(help="Task file; by default the datasets of the topology.")] = None,
    fixtures: Annotated[
        Path | None, typer.Option(help="Rollouts with known rewards; by default beside the environment's module.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token of --url; else as for --head of other commands.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one call.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a topology as a whole and then each of its environments, or an environment behind a URL."""
    from rollmill.cli.validating import Material, check_server

    if (config is None) == (url is None):
        raise typer.BadParameter("give a topology with -c, or a server with --url, and not both")
    if url and (service or topology_only):
        raise typer.BadParameter("--service and --topology-only are about a topology")
    if token_file and not url:
        raise typer.BadParameter("--token-file is about --url")
    material = Material(tasks, fixtures, timeout)
    if config is not None:
        summary, checks = _of_topology(config, service, None if topology_only else material)
    else:
        summary, checks = "", check_server(url or "", token_file, material)
    failed = [check for check in checks if check.status == "fail"]
    if as_json:
        emit_json({"summary": summary, "passed": not failed, "checks": [asdict(check) for check in checks]})
    else:
        emit("\n".join(filter(None, (summary, _lines(checks)))))
    if failed:
        raise typer.Exit(1)


def _of_topology(config: Path, service: str | None, material: "Material | None") -> tuple[str, "list[Check]"]:
    from rollmill.cli.validating import check_environments
    from rollmill.config.topology import load_topology

    topology = load_topology(config)
    return _summary(config, topology), check_environments(topology, service, material) if material else []


def _lines(checks: "list[Check]") -> str:
    rows = [[check.service, check.name, check.status.upper(), check.detail] for check in checks]
    return table(["SERVICE", "CHECK", "RESULT", ""], rows) if rows else ""


def _summary(config: Path, topology: "Topology") -> str:
    kinds = [spec.kind for spec in topology.services.values()]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    processes = sum(spec.replicas for spec in topology.services.values())
    datasets = len(topology.datasets)
    return (
        f"{config}: OK, {len(kinds)} service{'s' * (len(kinds) != 1)} ({', '.join(counts)}) in "
        f"{processes} process{'es' * (processes != 1)}, {datasets} dataset{'s' * (datasets != 1)}"
    )
