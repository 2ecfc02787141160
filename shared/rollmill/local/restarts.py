from collections import deque
from dataclasses import dataclass, field

RESTARTS = 5


@dataclass(slots=True)
class RestartBudget:
    """Decides whether a service that crashed is started again, and when. Knows no clock of its own."""

    most: int = RESTARTS
    """Restarts allowed within `window_seconds`."""
    window_seconds: float = 60.0
    first_delay_seconds: float = 0.25
    """Before the first restart; doubles with each further one in the window."""
    longest_delay_seconds: float = 5.0
    _restarts: deque[float] = field(default_factory=deque)

    def after_crash(self, now: float) -> float | None:
        """Take note of a crash at this time.

        Returns:
            Seconds to wait before the restart, or None when it crashed too often to be started again.
        """
        while self._restarts and now - self._restarts[0] >= self.window_seconds:
            self._restarts.popleft()
        if len(self._restarts) >= self.most:
            return None
        self._restarts.append(now)
        return min(self.longest_delay_seconds, self.first_delay_seconds * 2.0 ** min(len(self._restarts) - 1, 32))
