"""Two ways to start a service process: a new interpreter, or a fork of one that has imported what services need.

The fork costs a tenth of the time. It is used on Linux; on other systems libraries may break when they find
themselves in a forked process.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from rollmill.config.settings import SETTINGS_FILE
from rollmill.local.processes import start_mark

MAX_MESSAGE: Final = 65_536
# -P: a file in the current folder must not stand in for a module of the service.
_PYTHON: Final = (sys.executable, "-P", "-m")


_PASSED_ON: Final = frozenset({"PATH", "HOME", "LANG", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "LD_LIBRARY_PATH"})
_PASSED_ON_PREFIXES: Final = ("LC_", "SSL_", "OTEL_")
_OFTEN_SECRET: Final = re.compile(r"OTEL_.*_HEADERS")


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What a process is to become. Nothing in it is secret."""

    label: str
    use: str
    settings: str
    """Path of its settings file."""
    with_parent: bool
    """It stops when its standard input ends."""


def service_environment(environ: Mapping[str, str], pass_on: Collection[str] = ()) -> dict[str, str]:
    """Choose what a service process sees of the environment: what Python needs, and nobody's keys.

    Args:
        environ: the whole environment.
        pass_on: further variables that it may see.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED_ON
        or name in pass_on
        or (name.startswith(_PASSED_ON_PREFIXES) and not _OFTEN_SECRET.fullmatch(name))
    }


class Child(Protocol):
    """A process that was started."""

    @property
    def pid(self) -> int:
        """Its number."""

    def poll(self) -> int | None:
        """Return how it ended, negative for a signal; None while it lives."""


class Spawner(Protocol):
    """Starts processes; they live on when it is closed."""

    def start(self, order: StartOrder, *, listener: socket.socket, stdin: int, log: int) -> Child:
        """Start a process with its own copies of the socket and of the two file descriptors."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what belongs to it."""


def new_spawner(environment: Mapping[str, str]) -> Spawner:
    """Return the fastest way of this system.

    Args:
        environment: all that the processes see of it.
    """
    return ForkSpawner(environment) if sys.platform == "linux" else ExecSpawner(environment)


class ExecSpawner:
    """Starts a new interpreter for each process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def start(self, order: StartOrder, *, listener: socket.socket, stdin: int, log: int) -> Child:
        """See `Spawner.start`."""
        command = [*_PYTHON, "rollmill.local.serve_process", order.use, "--fd", str(listener.fileno())]
        return subprocess.Popen(
            [*command, "--with-parent"] if order.with_parent else command,
            env={**self._environment, SETTINGS_FILE: order.settings},
            stdin=stdin,
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C is for `up`, which stops the services in order
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing belongs to it."""


@dataclass(slots=True)
class _Forked:
    """A child of the fork server, which tells how it ended."""

    pid: int
    server: "ForkSpawner"

    def poll(self) -> int | None:
        return self.server.exit_code(self.pid)


class ForkSpawner:
    """Has `rollmill.local.fork_server` fork each process; it imports meanwhile what they need."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # Packets keep the borders of messages, and the file descriptors that travel with each.
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [*_PYTHON, "rollmill.local.fork_server"]
            self._server = subprocess.Popen(
                command, env=dict(environment), stdin=theirs.fileno(), start_new_session=True
            )
        self._environment = environment
        self._exit_codes: dict[int, int] = {}

    def start(self, order: StartOrder, *, listener: socket.socket, stdin: int, log: int) -> Child:
        """See `Spawner.start`."""
        message = json.dumps(asdict(order)).encode()
        try:
            socket.send_fds(self._control, [message], [listener.fileno(), stdin, log])
            while (pid := self._take(self._control.recv(MAX_MESSAGE))) is None:
                pass
        except OSError:  # the server is gone; a new interpreter is as good, only slower
            return ExecSpawner(self._environment).start(order, listener=listener, stdin=stdin, log=log)
        return _Forked(pid, self)

    def exit_code(self, pid: int) -> int | None:
        """Return how a process ended; None while it lives. When the server died, nobody knows: -1."""
        while pid not in self._exit_codes:
            try:
                self._take(self._control.recv(MAX_MESSAGE, socket.MSG_DONTWAIT))
            except BlockingIOError:
                return None
            except OSError:
                return None if start_mark(pid) else -1
        return self._exit_codes[pid]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server; the processes that it made live on."""
        self._control.close()
        self._server.terminate()
        self._server.wait()

    def _take(self, message: bytes) -> int | None:
        """Note an exit code, or return the number of the new process."""
        if not message:
            raise ConnectionResetError("it ended")
        told: dict[str, int] = json.loads(message)
        if "exit_code" in told:
            self._exit_codes[told["pid"]] = told["exit_code"]
            return None
        return told["pid"]


def open_log(path: Path) -> int:
    """Open a log file for a process to append to; readable by its owner only."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
