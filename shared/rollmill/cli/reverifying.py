"""The work behind `rollmill reverify`: finds the services, grades, shows how it goes and what changed."""

import asyncio
from pathlib import Path

from rollmill.cli.console import emit
from rollmill.cli.progress import CollectProgress, say, say_agents
from rollmill.cli.services import check_one_source, new_runner, open_services, stop_on_signals
from rollmill.collection.regrading import Changes
from rollmill.collection.reverification import Reverification, ReverifyPlan
from rollmill.config.topology import Topology, load_topology
from rollmill.contracts.runs import RunStatus
from rollmill.errors import RollmillError


class InterruptedReverificationError(RollmillError):
    """Ctrl-C or SIGTERM ended it; what is graded is on disk."""

    slug, title = "interrupted", "Interrupted"


def run_reverification(plan: ReverifyPlan, config: Path | None, head: str | None) -> RunStatus:
    """Grade stored rollouts again and return how it went.

    Raises:
        RollmillError: nothing could be graded, or the run failed.
        InterruptedReverificationError: the user stopped it.
    """
    check_one_source(config, head)
    topology = load_topology(config) if config else None
    with new_runner() as runner:
        return runner.run(_reverify(plan, topology, config, head))


async def _reverify(plan: ReverifyPlan, topology: Topology | None, config: Path | None, head: str | None) -> RunStatus:
    async with open_services(topology, config, head, grading_only=True) as client:
        run = Reverification(plan, client)
        await run.prepare()
        if run.stored.without_response:
            say(f"{run.stored.without_response} failed rollouts have no response to grade: collect them again")
        work = asyncio.create_task(run.run())
        stop_on_signals(work)
        async with CollectProgress(run.status):
            await asyncio.wait([work])
        status = run.status()
        if work.cancelled():
            raise InterruptedReverificationError(
                f"interrupted: {status.completed} of {status.expected} rollouts are graded in {run.files.rollouts}; "
                "go on with the same command and --resume"
            )
        work.result()
        _tell(status, run)
        return status


def _tell(status: RunStatus, run: Reverification) -> None:
    say_agents(status, "rollouts graded")
    say(describe(run.changes))
    if status.failed:
        say(f"{status.failed} rollouts could not be graded; the reasons are in {run.files.failures}")
    emit(str(run.files.rollouts))


def describe(changes: Changes) -> str:
    """Say on one line how the rewards changed."""
    if changes.flip_rate is None:
        return "no rollout had a reward before"
    changed = changes.up + changes.down
    return (
        f"{changed} of {changes.compared} rewards changed: {changes.up} up, {changes.down} down; "
        f"{changes.flips} turned from right to wrong or back (flip rate {100 * changes.flip_rate:.2f} %)"
    )
