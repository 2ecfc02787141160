"""`rollmill aggregate`: the shards of a run in, one run out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.cli.console import emit, tell

if TYPE_CHECKING:
    from rollmill.collection.merging import Merged


def aggregate(
    input_glob: Annotated[str, typer.Option(help="Pattern of the shards' rollouts files, 'shards/*.jsonl'.")],
    output: Annotated[Path, typer.Option(help="File for all rollouts; the run's other files lie beside it.")],
    config: Annotated[
        Path | None, typer.Option("-c", "--config", help="Topology file, for environments with metrics of their own.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="URL of a head, for the same.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Merge shards whose manifests differ.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is there.")] = False,
) -> None:
    """Merge the shards of a run: rollouts, input rows, failures and manifests; and compute the metrics of all."""
    from rollmill.cli.services import check_one_source
    from rollmill.collection.merging import find_shards, merge_shards

    if config or head:
        check_one_source(config, head)
    shards = find_shards(input_glob, output)
    merged = merge_shards(shards, output, force=force, overwrite=overwrite)
    for warning in merged.warnings:
        tell(f"warning: {warning}")
    _write_metrics(merged, config, head)
    counts = merged.manifest.counts
    mean = "-" if merged.manifest.mean_reward is None else f"{merged.manifest.mean_reward:.4f}"
    tell(f"{len(shards)} shards: {counts.completed} of {counts.expected} rollouts, mean reward {mean}")
    if counts.failed:
        tell(f"{counts.failed} rollouts failed for good; the reasons are in {merged.files.failures}")
    emit(str(merged.files.rollouts))


def _write_metrics(merged: "Merged", config: Path | None, head: str | None) -> None:
    from rollmill.cli.services import new_runner, open_services
    from rollmill.collection.aggregation import aggregate_run
    from rollmill.config.topology import load_topology

    agents = [name for name, agent in merged.manifest.agents.items() if agent.completed]

    async def through_services() -> None:
        topology = load_topology(config) if config else None
        async with open_services(topology, config, head, grading_only=True) as client:
            await aggregate_run(merged.files, agents, client)

    with new_runner() as runner:
        runner.run(through_services() if config or head else aggregate_run(merged.files, agents, None))
