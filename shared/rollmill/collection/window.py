import time
from collections.abc import Callable

from rollmill.collection.outcomes import Completed, Failed

START = 256
SHRINK_FACTOR = 0.5
COOLDOWN_SECONDS = 1.0
"""A burst of refusals is one message: the window shrinks once for all that arrive within this time."""

_LESS_PLEASE = frozenset({"overloaded", "not-ready", "connect-failed", "connection-lost"})


class Window:
    """How many rollouts of one agent may be in flight: more while all goes well, fewer when a service asks for less.

    Additive increase, multiplicative decrease, as in TCP (RFC 5681): it starts small enough not to swamp the agent with
    connections, doubles with each full window of answers until the first refusal, and grows by one per full window
    after that. The run's own concurrency stays the upper bound.

    Args:
        start: size at the beginning, >= 1.
        clock: monotonic seconds.
    """

    def __init__(self, *, start: int = START, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(start)
        self._clock = clock
        self._refused = False
        self._shrunk = float("-inf")
        self.in_use = 0

    @property
    def size(self) -> int:
        """Rollouts that may be in flight now, >= 1."""
        return int(self._size)

    @property
    def free(self) -> bool:
        """Whether there is a place now."""
        return self.in_use < self.size

    def take(self) -> None:
        """Take a place; there must be a free one."""
        self.in_use += 1

    def release(self) -> None:
        """Give a place back."""
        self.in_use -= 1

    def note(self, outcome: Completed | Failed) -> None:
        """Learn from how an attempt ended, before its place is given back."""
        if isinstance(outcome, Completed):
            self._size += 1 / self._size if self._refused else 1.0
        elif outcome.failure.type in _LESS_PLEASE and self._clock() - self._shrunk >= COOLDOWN_SECONDS:
            self._refused = True
            self._shrunk = self._clock()
            self._size = max(1.0, min(self._size, float(self.in_use)) * SHRINK_FACTOR)
