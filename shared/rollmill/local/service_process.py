import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Final

from rollmill.errors import ConfigError
from rollmill.local.plan import ProcessPlan
from rollmill.local.processes import ProcessRef, process_ref
from rollmill.local.restarts import RestartBudget
from rollmill.local.sockets import base_url, bound_address, listen
from rollmill.local.spawning import Child, Spawner, StartOrder, open_log
from rollmill.local.state import ProcessRecord, StateDir
from rollmill.observability.logging import readable_line

TAIL_LINES: Final = 20


@dataclass(slots=True, eq=False)
class ServiceProcess:
    """One service process under the care of `up`, from its socket to its end."""

    plan: ProcessPlan
    host: str
    state: StateDir
    head_url: str = ""
    """Filled in for all but the head, before the start."""
    url: str = ""
    ref: ProcessRef = field(default_factory=lambda: ProcessRef(0, ""))
    budget: RestartBudget = field(default_factory=RestartBudget)
    restart_at: float | None = None
    """When a crashed process is to be started again."""
    given_up: bool = False
    _listener: socket | None = None
    _child: Child | None = None

    @property
    def label(self) -> str:
        """How the process is called in messages and file names."""
        return self.plan.label

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.state.log_path(self.label)

    def open_socket(self) -> None:
        """Listen, so that its URL is known and calls can wait for the process.

        Raises:
            ConfigError: the port cannot be had.
        """
        port = self.plan.port
        if self.url and not port:
            port = int(self.url.rpartition(":")[2])  # a service that comes back is best found where it was
        try:
            self._listener = listen(self.host, port, option=self.plan.port_option)
        except ConfigError:
            if port == self.plan.port:
                raise
            self._listener = listen(self.host, 0)
        port = bound_address(self._listener)[1]
        self.url = base_url(self.host, port, head_url=self.head_url, tls=bool(self.plan.settings.get("tls_cert_file")))

    def close_socket(self) -> None:
        """Let go of the socket; the process has its own copy, and without one nobody listens any more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def start(self, spawner: Spawner, *, stdin: int, with_parent: bool) -> None:
        """Start the process on the open socket.

        Args:
            spawner: makes the process.
            stdin: file descriptor that it reads as standard input.
            with_parent: it stops when that input ends.
        """
        if self._listener is None:
            self.open_socket()
        listener = self._listener
        if listener is None:
            raise RuntimeError(f"{self.label} has no socket")
        urls = {"advertise_url": self.url} | ({"head_url": self.head_url} if self.head_url else {})
        settings = self.state.write_settings(self.label, self.plan.settings | urls)
        order = StartOrder(self.label, self.plan.use, str(settings), with_parent)
        log = open_log(self.log)
        try:
            self._child = spawner.start(order, listener=listener, stdin=stdin, log=log)
        finally:
            os.close(log)
            self.close_socket()
        self.ref = process_ref(self._child.pid)
        self.restart_at = None

    def exit_code(self) -> int | None:
        """Return how the process ended, negative for a signal; None while it lives or before it starts."""
        return self._child.poll() if self._child else None

    def log_tail(self) -> str:
        """Return the last lines of its log, as text for a person."""
        with suppress(OSError):
            data = self.log.read_bytes()[-65_536:]
            lines = [readable_line(line) for line in data.decode("utf-8", "replace").splitlines()[-TAIL_LINES:]]
            return "\n".join("\n".join(lines).splitlines()[-TAIL_LINES:])
        return ""

    def record(self) -> ProcessRecord:
        """Return what `services.json` says of it."""
        return ProcessRecord(
            label=self.label,
            name=self.plan.name,
            kind=self.plan.kind,
            pid=self.ref.pid,
            started=self.ref.started,
            url=self.url,
            log=str(self.log),
        )
