"""Processes known by number and start time: a number that the system gave to another process is never signalled."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

POLL_SECONDS: Final = 0.05


class ProcessRef(NamedTuple):
    """One process of this machine."""

    pid: int
    started: str
    """What `start_mark` said of it."""

    def is_running(self) -> bool:
        """Say whether the process lives; one that ended and waits for its parent does not."""
        return bool(self.started) and start_mark(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still lives."""
        if self.is_running():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def start_mark(pid: int) -> str:
    """Return text that no other process with this number has had or will have; empty when there is no such process."""
    return _mark_from_proc(pid) if sys.platform == "linux" else _mark_from_ps(pid)


def process_ref(pid: int) -> ProcessRef:
    """Return a reference to a process that lives now."""
    return ProcessRef(pid, start_mark(pid))


async def stop_in_stages(
    stages: Sequence[Sequence[ProcessRef]], *, grace_seconds: float, hurry: asyncio.Event | None = None
) -> list[ProcessRef]:
    """Ask the processes of each stage to end, and kill those that have not after the grace; then the next stage.

    Args:
        stages: the processes, in the order in which they are to end.
        grace_seconds: longest wait for one stage.
        hurry: when set, whoever still lives is killed at once.

    Returns:
        The processes that had to be killed.
    """
    killed: list[ProcessRef] = []
    for stage in stages:
        for process in stage:
            process.send(signal.SIGTERM)
        left = await _wait(stage, grace_seconds, hurry)
        for process in left:
            process.send(signal.SIGKILL)
        killed += left
        await _wait(left, grace_seconds, None)
    return killed


async def _wait(processes: Sequence[ProcessRef], seconds: float, hurry: asyncio.Event | None) -> Sequence[ProcessRef]:
    until = asyncio.get_running_loop().time() + seconds
    left = [process for process in processes if process.is_running()]
    while left and asyncio.get_running_loop().time() < until and not (hurry and hurry.is_set()):
        await asyncio.sleep(POLL_SECONDS)
        left = [process for process in left if process.is_running()]
    return left


def _mark_from_proc(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
    # The second field is the command in parentheses, which may hold anything; the 22nd is the start in clock ticks.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def _mark_from_ps(pid: int) -> str:
    found = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = found.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip()
