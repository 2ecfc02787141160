import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollmill_services.models.openai_compatible.faults import Faults

REST_SECONDS = 5.0
"""How long an engine that could not be reached is passed over while others can be asked."""


class Engine:
    """One replica of the engine."""

    def __init__(self, base_url: str, faults: Faults) -> None:
        self.base_url = base_url
        self.faults = faults
        self.in_flight = 0
        self.rests_until = 0.0

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a request as in flight."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class Balance:
    """Chooses the engine for the next attempt: the one with the least in flight that does not rest.

    Args:
        engines: at least one.
        clock: monotonic seconds.
        choice: picks one of several that are equally busy.
    """

    def __init__(
        self,
        engines: list[Engine],
        *,
        clock: Callable[[], float] = time.monotonic,
        choice: Callable[[list[Engine]], Engine] = random.choice,
    ) -> None:
        self._engines = engines
        self._clock = clock
        self._choice = choice

    def choose(self) -> Engine:
        """Return the engine to ask; when all of them rest, one that rests."""
        awake = self._awake() or self._engines
        least = min(engine.in_flight for engine in awake)
        return self._choice([engine for engine in awake if engine.in_flight == least])

    def rest(self, engine: Engine) -> bool:
        """Pass over an engine for a while and say whether another one can be asked at once."""
        engine.rests_until = self._clock() + REST_SECONDS
        return bool(self._awake())

    def _awake(self) -> list[Engine]:
        now = self._clock()
        return [engine for engine in self._engines if engine.rests_until <= now]
