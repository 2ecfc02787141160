import random
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

State: TypeAlias = Literal["closed", "open", "half-open"]

THRESHOLD = 3
"""Failures in a row after which an instance is left alone."""
BASE_SECONDS = 1.0
CAP_SECONDS = 15.0
PROBE_WAIT_SECONDS = 0.05
"""How soon to look again when another call is probing the instance."""


class Breaker:
    """Keeps calls away from an instance that fails again and again. A state machine without I/O.

    Closed: calls pass; `THRESHOLD` failures in a row open it. Open: no calls, for a time that doubles with each opening
    and is jittered, so that many clients do not come back at once. Half-open: one call, the probe, passes; its success
    closes the breaker and its failure opens it again.

    Args:
        clock: monotonic seconds.
        uniform: source of jitter.
    """

    __slots__ = ("_clock", "_failures", "_openings", "_probing", "_uniform", "_until", "unreachable")

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._clock = clock
        self._uniform = uniform
        self._failures = 0
        self._openings = 0
        self._until = 0.0
        self._probing = False
        self.unreachable = False
        """Whether the last failure was that of the connection; else the instance answered that it failed."""

    @property
    def state(self) -> State:
        """How it stands now."""
        if not self._openings:
            return "closed"
        return "open" if self._clock() < self._until else "half-open"

    @property
    def admits(self) -> bool:
        """Whether a call may be sent now."""
        return not self._openings or (not self._probing and self._clock() >= self._until)

    @property
    def wait_seconds(self) -> float:
        """Seconds until it is worth looking again; 0 when a call may be sent now."""
        return 0.0 if self.admits else max(PROBE_WAIT_SECONDS, self._until - self._clock())

    def begin(self) -> bool:
        """Note that a call is sent; return whether it is the probe. Told again when the call ends."""
        if not self._openings:
            return False  # closed, as nearly always
        probe = self.state == "half-open" and not self._probing
        self._probing = self._probing or probe
        return probe

    def succeeded(self) -> None:
        """Note an answer that shows the instance at work: a late one of an older call counts as well."""
        self._failures = self._openings = 0
        self._probing = False
        self.unreachable = False

    def failed(self, *, probe: bool, unreachable: bool) -> None:
        """Note a failure of the instance itself."""
        self._failures += 1
        self.unreachable = unreachable
        self.ended(probe=probe)
        if probe or (not self._openings and self._failures >= THRESHOLD):
            bound = min(CAP_SECONDS, BASE_SECONDS * 2.0 ** min(self._openings, 16))
            self._openings += 1
            self._until = self._clock() + self._uniform(bound / 2, bound)

    def ended(self, *, probe: bool) -> None:
        """Note a call that ended without telling anything about the instance, such as a cancelled one."""
        if probe:
            self._probing = False
