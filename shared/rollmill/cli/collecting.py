"""The work behind `rollmill collect`: finds services and tasks, runs the collection, shows how it goes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from rollmill.artifacts.files import RunFiles
from rollmill.cli.datasets import dataset_input
from rollmill.cli.progress import CollectProgress, say, say_agents
from rollmill.cli.services import check_one_source, new_runner, open_services, stop_on_signals
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.collection.prompts import load_prompt
from rollmill.config.topology import Topology, load_topology, topology_digest
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.errors import RollmillError
from rollmill.local.memory import settle_memory


@dataclass(frozen=True, slots=True)
class Source:
    """Which services run which tasks, as the command line says."""

    config: Path | None
    head: str | None
    embedded: bool
    input: Path | None
    split: str | None


class InterruptedCollectionError(RollmillError):
    """Ctrl-C or SIGTERM ended the collection; what is settled is on disk."""

    slug, title = "interrupted", "Interrupted"


def run_collection(
    source: Source, output: Path, options: RunOptions, prompt: Path | None, *, resume: bool, overwrite: bool
) -> RunStatus:
    """Run a collection to its end and return how it went.

    Raises:
        RollmillError: nothing could be run, or the run failed.
        InterruptedCollectionError: the user stopped it.
    """
    check_one_source(source.config, source.head)
    if source.embedded and source.config is None:
        raise typer.BadParameter("--embedded needs a topology: -c")
    topology = load_topology(source.config) if source.config else None
    plan_for = _planner(output, options, prompt, resume=resume, overwrite=overwrite)
    with dataset_input(topology, source.input, source.split, options) as (tasks, adjusted), new_runner() as runner:
        plan = plan_for(tasks, adjusted, topology_digest(topology) if topology else None)
        settle_memory()
        return runner.run(_collect(source, topology, plan))


def _planner(
    output: Path, options: RunOptions, prompt: Path | None, *, resume: bool, overwrite: bool
) -> Callable[[Path, RunOptions, str | None], CollectionPlan]:
    prompt_config = load_prompt(prompt) if prompt else None

    def plan(tasks: Path, adjusted: RunOptions, digest: str | None) -> CollectionPlan:
        return CollectionPlan(
            input=tasks,
            output=output,
            options=adjusted,
            prompt=prompt_config,
            topology_digest=digest,
            resume=resume,
            overwrite=overwrite,
        )

    return plan


async def _collect(source: Source, topology: Topology | None, plan: CollectionPlan) -> RunStatus:
    async with open_services(
        topology, source.config, source.head, embedded=source.embedded, concurrency=plan.options.concurrency
    ) as client:
        collector = Collector(plan, client)
        await collector.prepare()
        for warning in collector.warnings:
            say(f"warning: {warning}")
        work = asyncio.create_task(collector.run())
        stop_on_signals(work)
        async with CollectProgress(collector.status):
            await asyncio.wait([work])
        status = collector.status()
        if work.cancelled():
            settled = status.completed + status.failed
            raise InterruptedCollectionError(
                f"interrupted: {settled} of {status.expected} rollouts are settled in {plan.output}; "
                "go on with the same command and --resume"
            )
        _tell(work.result(), plan)
        return status


def _tell(status: RunStatus, plan: CollectionPlan) -> None:
    """Results go to stdout: where the rollouts are. The summary is for people."""
    say_agents(status, "rollouts")
    if status.state == "stopped":
        say(status.error)
    if status.failed:
        failures = RunFiles.at(plan.output).failures
        reasons = ", ".join(f"{name} {count}x" for name, count in sorted(status.failures.items()))
        say(f"{status.failed} rollouts failed for good ({reasons}); each attempt and its reason is in {failures}")
    typer.echo(str(plan.output))
