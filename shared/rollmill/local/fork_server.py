"""The process that forks service processes: started by `up`, and gone when `up` is.

It has one thread, opens nothing and is told nothing secret, so a fork of it is as good as a new interpreter in
which the imports are done.
"""

import gc
import importlib
import json
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rollmill.config.settings import SETTINGS_FILE
from rollmill.local.serve_process import run
from rollmill.local.spawning import MAX_MESSAGE, StartOrder

PRELOADED: Final = (
    "rollmill.local.serving",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""What every service imports anyway."""


def main() -> None:
    """Fork a process for each order that arrives on standard input, a socket, until that ends."""
    gc.disable()
    _preload()
    gc.collect()
    gc.freeze()  # the collector would write to every object, and memory is shared only while nobody does
    with socket.socket(fileno=os.dup(0)) as control:
        forked = _Server(control).next_fork()
    if forked is not None:
        order, listener = forked
        os.environ[SETTINGS_FILE] = order.settings
        run(order.use, listener=listener, with_parent=order.with_parent)


def _preload() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
    # Imports them by way of the package, as services do: the package exports functions of its modules' own names.
    from rollmill.server import agent_app, model_app, resources_app  # noqa: F401


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int] = {}
        """Process number by the descriptor that tells of its end."""

    def next_fork(self) -> tuple[StartOrder, int] | None:
        """Serve orders; returns in each forked process its order and socket, and None when no more orders come."""
        while True:
            for descriptor in self._wait():
                if descriptor != self._control.fileno():
                    self._report_end(descriptor)
                    continue
                message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 3)
                if not message:
                    return None
                order = StartOrder(**json.loads(message))
                if self._fork(order, descriptors):
                    return order, descriptors[0]

    def _wait(self) -> list[int]:
        poll = select.poll()
        for descriptor in (self._control.fileno(), *self._children):
            poll.register(descriptor, select.POLLIN)
        return [descriptor for descriptor, _ in poll.poll()]

    def _fork(self, order: StartOrder, descriptors: Sequence[int]) -> bool:
        """Make a process; True in the new one."""
        pid = os.fork()
        if pid == 0:
            for descriptor in self._children:
                os.close(descriptor)
            _settle(order, descriptors)
            return True
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[os.pidfd_open(pid)] = pid
        self._tell({"pid": pid})
        return False

    def _report_end(self, descriptor: int) -> None:
        os.close(descriptor)
        pid = self._children.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        self._tell({"pid": pid, "exit_code": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, int]) -> None:
        with suppress(OSError):  # nobody listens any more: the next wait finds that out
            self._control.send(json.dumps(message).encode())


def _settle(order: StartOrder, descriptors: Sequence[int]) -> None:
    """Become a process of its own: its own session, input, output and name."""
    os.setsid()
    listener, stdin, log = descriptors
    os.set_inheritable(listener, False)
    os.dup2(stdin, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(stdin)
    os.close(log)
    with suppress(OSError):
        Path("/proc/self/comm").write_text(order.label[:15], encoding="utf-8")


if __name__ == "__main__":
    main()
