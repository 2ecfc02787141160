import asyncio


class Limiter:
    """Slots for rollouts in flight, whose number can change, or be withheld by a pause, while they are used.

    Made for one task that acquires and many that release.

    Args:
        limit: slots, >= 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._paused = False
        self._free = asyncio.Event()
        self.in_use = 0

    @property
    def limit(self) -> int:
        """Slots there are; fewer than are in use for a while after a reduction."""
        return self._limit

    @property
    def paused(self) -> bool:
        """Whether no slot is handed out."""
        return self._paused

    async def acquire(self) -> None:
        """Wait for a slot and take it."""
        while self._paused or self.in_use >= self._limit:
            self._free.clear()
            await self._free.wait()
        self.in_use += 1

    def release(self) -> None:
        """Give a slot back."""
        self.in_use -= 1
        self._free.set()

    def set_limit(self, limit: int) -> None:
        """Change the number of slots; those in use beyond it run out by themselves."""
        self._limit = limit
        self._free.set()

    def set_paused(self, paused: bool) -> None:
        """Stop or go on handing out slots."""
        self._paused = paused
        self._free.set()
