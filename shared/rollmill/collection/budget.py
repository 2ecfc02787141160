import asyncio
from collections.abc import Callable

from rollmill.collection.stats import RunStats
from rollmill.contracts.runs import RunBudget


def used_up(budget: RunBudget, *, tokens: int, wall_seconds: float, failures: int) -> str:
    """Say which limit of a run is reached, and how to go on; empty when none is. A pure function.

    Args:
        budget: the limits.
        tokens: used so far.
        wall_seconds: seconds at work so far.
        failures: rollouts given up on so far.
    """
    spent = (
        ("tokens were used", tokens, budget.max_tokens_total, "max-tokens-total"),
        ("seconds at work", wall_seconds, budget.max_wall_seconds, "max-wall"),
        ("rollouts failed", failures, budget.max_failures, "max-failures"),
    )
    for words, used, limit, flag in spent:
        if limit is not None and used >= limit:
            return (
                f"stopped by its budget: {used:.10g} of {limit:.10g} {words}. Go on with --resume and a larger --{flag}"
            )
    return ""


class BudgetWatch:
    """Stops a run at the first limit that is reached. A context manager: the time is watched inside it.

    Args:
        stats: the run's numbers, and its budget.
        stop: called once.
    """

    def __init__(self, stats: RunStats, stop: Callable[[], None]) -> None:
        self.reason = ""
        """Why the run was stopped; empty while it was not."""
        self._stats = stats
        self._stop = stop
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "BudgetWatch":
        self._watch_time()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def check(self) -> None:
        """Stop the run if a limit is reached; called after each attempt."""
        if self.reason:
            return
        stats = self._stats
        self.reason = used_up(
            stats.budget, tokens=stats.tokens, wall_seconds=stats.wall_seconds, failures=stats.given_up
        )
        if self.reason:
            self._stop()

    def _watch_time(self) -> None:
        self.check()
        limit = self._stats.budget.max_wall_seconds
        if limit is not None and not self.reason:
            left = max(0.001, limit - self._stats.wall_seconds)  # a timer may be early by the clock's resolution
            self._timer = asyncio.get_running_loop().call_later(left, self._watch_time)
