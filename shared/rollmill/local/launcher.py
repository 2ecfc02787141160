"""Starts the processes of a deployment, watches over them, and stops them."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rollmill.client.http import HttpTransport
from rollmill.client.service_client import auth_headers
from rollmill.client.transport import Transport
from rollmill.contracts.services import ServiceList
from rollmill.errors import ConflictError, RollmillError
from rollmill.local.plan import ProcessPlan
from rollmill.local.processes import process_ref, stop_in_stages
from rollmill.local.restarts import RESTARTS, RestartBudget
from rollmill.local.service_process import ServiceProcess
from rollmill.local.spawning import Spawner
from rollmill.local.state import Deployment, StateDir

ASK_SECONDS: Final = 1.0
"""Longest wait for one answer of a service that may still be starting."""
PAUSE_SECONDS: Final = 0.03
WATCH_SECONDS: Final = 0.2
"""How soon a crash is noticed."""


class LaunchError(RollmillError):
    """A service did not start; the detail says why."""

    slug, title = "launch-failed", "Launch failed"


class Launcher:
    """The processes of one deployment.

    Args:
        state: where settings, logs and the record go.
        spawner: makes the processes.
        topology: path of the topology file, for the record.
        token: shown to the services.
        foreground: the services end with this process, and crashed ones are started again.
        tell: says something to the person who runs `up`.
        restarts: how often one service is started again within a minute, before everything is given up.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        state: StateDir,
        spawner: Spawner,
        *,
        topology: str,
        token: str,
        foreground: bool,
        tell: Callable[[str], None],
        restarts: int = RESTARTS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.processes: list[ServiceProcess] = []
        self._state = state
        self._spawner = spawner
        self._topology = topology
        self._token = token
        self._foreground = foreground
        self._tell = tell
        self._restarts = restarts
        self._clock = clock
        # Processes read from one end as long as this one holds the other, however it ends.
        self._lifeline = os.pipe() if foreground else None

    @property
    def head_url(self) -> str:
        """Where the head listens."""
        return next((p.url for p in self.processes if p.plan.kind == "head"), "")

    def start(self, plans: Sequence[ProcessPlan], *, host: str) -> None:
        """Open every socket, then start every process; ready is none of them yet.

        Raises:
            ConflictError: a deployment of this state folder still runs.
            ConfigError: a port cannot be had; nothing was started.
        """
        self._refuse_second()
        self.processes = [
            ServiceProcess(plan, host, self._state, budget=RestartBudget(most=self._restarts)) for plan in plans
        ]
        try:
            for process in self.processes:
                process.open_socket()
        except RollmillError:
            for process in self.processes:
                process.close_socket()
            raise
        for process in self.processes:
            process.head_url = "" if process.plan.kind == "head" else self.head_url
            process.log.unlink(missing_ok=True)
            self._start(process)
        self._save()

    async def until_ready(self, stop: asyncio.Event, *, timeout_seconds: float) -> bool:
        """Wait until every process serves and is registered.

        Returns:
            False when `stop` was set meanwhile.

        Raises:
            LaunchError: a process ended, or was not ready in time; names it and shows the end of its log.
        """
        until = self._clock() + timeout_seconds
        missing = list(self.processes)
        ca_file = self.processes[0].plan.settings.get("tls_ca_file")  # the same for all
        transport = HttpTransport(ca_file=Path(ca_file) if ca_file else None)
        try:
            while missing and not stop.is_set():
                self._fail_if_any_ended()
                if self._clock() >= until:
                    raise LaunchError(_not_ready(missing, timeout_seconds))
                registered = await self._registered(transport)
                for process in list(missing):
                    known = process.plan.kind == "head" or process.url in registered
                    if known and await self._is_ready(transport, process):
                        missing.remove(process)
                if missing:
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await transport.aclose()
        return not stop.is_set()

    async def supervise(self, stop: asyncio.Event) -> None:
        """Start crashed processes again until `stop` is set.

        Raises:
            LaunchError: none is left.
        """
        while not stop.is_set():
            for process in self.processes:
                self._look_after(process)
            if all(process.given_up for process in self.processes):
                raise LaunchError("every service crashed too often; their logs say why")
            try:
                await asyncio.wait_for(stop.wait(), WATCH_SECONDS)
            except TimeoutError:
                continue

    async def stop(self, *, grace_seconds: float, hurry: asyncio.Event | None = None) -> None:
        """Stop everything, callers before those that they call, and leave nothing behind but logs.

        Args:
            grace_seconds: how long each kind of service may take before it is killed.
            hurry: when set, everything is killed at once.
        """
        killed = await stop_in_stages(self._record().stop_order(), grace_seconds=grace_seconds, hurry=hurry)
        for process in self.processes:
            process.close_socket()
            process.exit_code()  # takes note of the end, so that the system can forget the process
            if process.ref in killed:
                self._tell(f"{process.label} did not stop in time and was killed")
        for end in self._lifeline or ():
            os.close(end)
        self._lifeline = None
        if self.processes:  # else the folder may be that of another deployment
            self._state.remove_settings()
            self._state.forget()

    def _refuse_second(self) -> None:
        known = self._state.load()
        if known is not None and known.is_alive():
            raise ConflictError(f"services of {known.topology} run already, head {known.head_url}; run: rollmill down")
        self._state.remove_settings()

    def _start(self, process: ServiceProcess) -> None:
        stdin = self._lifeline[0] if self._lifeline else os.open(os.devnull, os.O_RDONLY)
        try:
            process.start(self._spawner, stdin=stdin, with_parent=self._foreground)
        finally:
            if not self._lifeline:
                os.close(stdin)

    def _record(self) -> Deployment:
        own = process_ref(os.getpid())
        return Deployment(
            topology=self._topology,
            head_url=self.head_url,
            launcher_pid=own.pid,
            launcher_started=own.started,
            processes=[process.record() for process in self.processes if process.ref.pid],
        )

    def _save(self) -> None:
        self._state.save(self._record())

    def _look_after(self, process: ServiceProcess) -> None:
        code = process.exit_code()
        if code is None or process.given_up:
            return
        now = self._clock()
        if process.restart_at is None:
            delay = process.budget.after_crash(now)
            process.given_up = delay is None
            process.restart_at = now + (delay or 0.0)
            then = "crashed too often, not starting it again" if delay is None else f"starting it again in {delay:g} s"
            self._tell(f"{process.label} {ending(code)}; {then} (log: {shown_path(process.log)})")
        elif now >= process.restart_at:
            try:
                self._start(process)
            except RollmillError as error:
                self._tell(f"{process.label}: {error}")
                process.restart_at = None
                return
            self._save()

    def _fail_if_any_ended(self) -> None:
        for process in self.processes:
            code = process.exit_code()
            if code is not None:
                raise LaunchError(f"{process.label} {ending(code)} during start\n{_log_end(process)}")

    async def _registered(self, transport: Transport) -> set[str]:
        url = f"{self.head_url}/v1/services"
        try:
            reply = await transport.send("GET", url, headers=auth_headers(self._token), timeout=ASK_SECONDS)
            return {service.url for service in ServiceList.model_validate(reply.json()).services} if reply.ok else set()
        except (RollmillError, ValueError):
            return set()

    async def _is_ready(self, transport: Transport, process: ServiceProcess) -> bool:
        try:
            reply = await transport.send("GET", f"{process.url}/readyz", headers={}, timeout=ASK_SECONDS)
        except RollmillError:
            return False
        return reply.ok


def ending(code: int) -> str:
    """Say how a process ended, from its exit code; negative ones are signals."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def shown_path(path: str | Path) -> str:
    """Write a path as short as it can be read from the current folder."""
    short = os.path.relpath(path)
    return str(path) if short.startswith("..") else short


def _not_ready(missing: Sequence[ServiceProcess], seconds: float) -> str:
    names = ", ".join(process.label for process in missing)
    first = _log_end(missing[0])
    return f"not ready within {seconds:g} s (--ready-timeout): {names}\n{first}"


def _log_end(process: ServiceProcess) -> str:
    return f"the end of {shown_path(process.log)}:\n{process.log_tail() or '(empty)'}"
