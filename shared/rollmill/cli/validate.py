from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.console import emit


def validate(config: Annotated[Path, typer.Option("--config", "-c", help="Topology file.")]) -> None:
    """Check a topology as a whole, and list every problem."""
    from rollmill.config.topology import load_topology

    topology = load_topology(config)
    kinds = [spec.kind for spec in topology.services.values()]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    processes = sum(spec.replicas for spec in topology.services.values())
    datasets = len(topology.datasets)
    emit(
        f"{config}: OK, {len(kinds)} service{'s' * (len(kinds) != 1)} ({', '.join(counts)}) in "
        f"{processes} process{'es' * (processes != 1)}, {datasets} dataset{'s' * (datasets != 1)}"
    )
