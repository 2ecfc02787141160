import asyncio
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

import typer

from rollmill.contracts.runs import RunStatus

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_SECONDS = 5.0
BAR_SECONDS = 0.1


def say(text: str) -> None:
    """Tell the person something; stdout is for results."""
    typer.echo(text, err=True)


def say_agents(status: RunStatus, done: str) -> None:
    """Tell how each agent did; `done` says of what its completed rollouts are a number."""
    for name, agent in sorted(status.agents.items()):
        mean = "-" if agent.mean_reward is None else f"{agent.mean_reward:.4f}"
        failed = f", {agent.failed} failed" if agent.failed else ""
        say(f"{name}: {agent.completed} of {agent.expected} {done}{failed}, mean reward {mean}")


class CollectProgress:
    """Shows a collection while it runs: a bar on a terminal, a line every few seconds elsewhere.

    Args:
        status: returns the run's numbers.
    """

    def __init__(self, status: Callable[[], RunStatus]) -> None:
        self._status = status
        self._task: asyncio.Task[None] | None = None
        self._bar = _bar() if sys.stderr.isatty() else None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._show())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _show(self) -> None:
        if self._bar is None:
            while True:
                await asyncio.sleep(LINE_SECONDS)
                say(describe(self._status()))
        with self._bar as bar:
            status = self._status()
            task = bar.add_task("collecting", total=status.expected, numbers="", eta="")
            try:
                while True:
                    self._update(bar, task)
                    await asyncio.sleep(BAR_SECONDS)
            finally:
                self._update(bar, task)

    def _update(self, bar: "Progress", task: "TaskID") -> None:
        status = self._status()
        bar.update(
            task,
            completed=status.completed + status.failed,
            numbers=_numbers(status),
            eta="" if status.eta_seconds is None else f"{_duration(status.eta_seconds)} left",
        )


def describe(status: RunStatus) -> str:
    """Say on one line how a run goes."""
    settled = status.completed + status.failed
    share = 100 * settled / status.expected if status.expected else 100.0
    eta = "" if status.eta_seconds is None else f", {_duration(status.eta_seconds)} left"
    return f"{settled} of {status.expected} ({share:.0f} %), {_numbers(status)}{eta}"


def _numbers(status: RunStatus) -> str:
    parts = [f"{status.rate_per_second:.1f}/s"]
    if status.mean_reward is not None:
        parts.append(f"mean reward {status.mean_reward:.3f}")
    if status.failed:
        parts.append(f"{status.failed} failed")
    elif status.failed_attempts:
        parts.append(f"{status.failed_attempts} attempts failed")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TextColumn("{task.fields[eta]}"),
        console=Console(stderr=True),
        transient=True,
    )
