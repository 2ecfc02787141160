import asyncio
import os
import shlex
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.cli.console import checked_level, table, tell
from rollmill.local.ports import COLLECTOR_PORT, HEAD_PORT, PROFILER_PORT

if TYPE_CHECKING:
    from rollmill.config.specs import Topology
    from rollmill.local.launcher import Launcher
    from rollmill.local.plan import ProcessPlan

Port = Annotated[int, typer.Option(min=0, max=65_535, help="0 picks a free one.")]


def up(  # noqa: PLR0913 (one parameter for each option of the command)
    config: Annotated[Path, typer.Option("--config", "-c", help="Topology file.")],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when everything is ready.")] = False,
    host: Annotated[str, typer.Option(help="Interface that all services listen on.")] = "127.0.0.1",
    head_port: Port = HEAD_PORT,
    collector_port: Port = COLLECTOR_PORT,
    profiler_port: Port = PROFILER_PORT,
    data_dir: Annotated[Path, typer.Option(help="Directory of the runs.")] = Path("results"),
    ready_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds until all must be ready.")] = 60.0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to stop in, for each kind of service.")] = 35.0,
    restarts: Annotated[
        int, typer.Option(min=0, help="Restarts of one service within a minute, before everything is stopped.")
    ] = 5,
    log_level: Annotated[str, typer.Option(help="Of the services.")] = "INFO",
    pass_env: Annotated[
        list[str] | None, typer.Option(help="Variable that the services see as well; may be repeated.")
    ] = None,
) -> None:
    """Start every service of a topology as a process of its own, with head, collector and profiler.

    In the foreground, services that crash are started again and Ctrl-C stops everything.
    """
    from rollmill.local.spawning import new_spawner, service_environment

    began = time.monotonic()
    level = checked_level(log_level)
    # Made first: it gets ready while the topology is checked.
    with new_spawner(service_environment(os.environ, pass_env or ())) as spawner:
        from rollmill.config.topology import load_topology
        from rollmill.local.connection import deployment_tokens, tls_from_environment
        from rollmill.local.launcher import Launcher
        from rollmill.local.plan import Placement, plan_processes
        from rollmill.local.state import StateDir

        topology = load_topology(config)
        state = StateDir.default()
        tokens, tls = deployment_tokens(state), tls_from_environment(os.environ)
        placement = Placement(
            token=tokens.shown,
            token_file=tokens.file,
            tls=tls,
            data_dir=data_dir,
            head_port=head_port,
            collector_port=collector_port,
            profiler_port=profiler_port,
            log_level=level,
        )
        plans = plan_processes(topology, placement)
        with state.locked():
            launcher = Launcher(
                state,
                spawner,
                topology=str(config.absolute()),
                token=placement.token,
                foreground=not detach,
                tell=tell,
                restarts=restarts,
            )
            run = _Run(launcher, topology, began, detach=detach, grace_seconds=grace)
            asyncio.run(run.run(plans, host=host, ready_timeout=ready_timeout))


class _Run:
    """One `up`, from the first process to the last."""

    def __init__(
        self, launcher: "Launcher", topology: "Topology", began: float, *, detach: bool, grace_seconds: float
    ) -> None:
        self._launcher = launcher
        self._topology = topology
        self._began = began
        self._detach = detach
        self._grace_seconds = grace_seconds
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, plans: "list[ProcessPlan]", *, host: str, ready_timeout: float) -> None:
        """Start, watch and stop; with `detach`, only start."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` is respected
                asyncio.get_running_loop().add_signal_handler(number, self._asked_to_stop)
        leave_running = False
        try:
            self._launcher.start(plans, host=host)
            if await self._launcher.until_ready(self._stop, timeout_seconds=ready_timeout):
                self._welcome()
                leave_running = self._detach
                if not self._detach:
                    await self._launcher.supervise(self._stop)
        finally:
            if not leave_running:
                await self._launcher.stop(grace_seconds=self._grace_seconds, hurry=self._hurry)
        if not leave_running:
            tell("stopped")

    def _asked_to_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
            return
        self._stop.set()
        tell("stopping; once more to stop at once")

    def _welcome(self) -> None:
        from rollmill.local.launcher import shown_path

        lines = [[p.label, p.plan.kind, p.url, shown_path(p.log)] for p in self._launcher.processes]
        tell(table(["SERVICE", "KIND", "URL", "LOG"], lines))
        stop = "rollmill down stops them" if self._detach else "Ctrl-C stops them"
        tell(f"\nready in {time.monotonic() - self._began:.1f} s; {stop}. Next:")
        for command in next_commands(self._topology, self._launcher.head_url):
            tell(f"  {command}")
        tell(f"Page: {self._launcher.head_url}/ui/ (log in with what rollmill token prints)")


def next_commands(topology: "Topology", head_url: str) -> list[str]:
    """Write out the two commands that one tries next: a collection, and a call of one's own."""
    from rollmill.local.launcher import shown_path

    tasks = ["--head", head_url, "--input", "tasks.jsonl"]
    if topology.datasets and topology.source:
        tasks = ["-c", shown_path(topology.source)]
    collect = shlex.join(["rollmill", "collect", *tasks, "--output", "results/first.jsonl"])
    return [collect, f'curl -H "Authorization: Bearer $(rollmill token)" {head_url}/v1/services']
