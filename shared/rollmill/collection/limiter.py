import asyncio


class Limiter:
    """Slots for rollouts in flight, whose number can change, or be withheld by a pause, while they are used.

    Made for one task that takes slots and waits for changes, and many that give slots back.

    Args:
        limit: slots, >= 1.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._paused = False
        self._changed = asyncio.Event()
        self.in_use = 0

    @property
    def limit(self) -> int:
        """Slots there are; fewer than are in use for a while after a reduction."""
        return self._limit

    @property
    def paused(self) -> bool:
        """Whether no slot is handed out."""
        return self._paused

    @property
    def free(self) -> bool:
        """Whether a slot can be taken now."""
        return not self._paused and self.in_use < self._limit

    def take(self) -> None:
        """Take a slot; there must be a free one."""
        self.in_use += 1

    def release(self) -> None:
        """Give a slot back."""
        self.in_use -= 1
        self.notify()

    def set_limit(self, limit: int) -> None:
        """Change the number of slots; those in use beyond it run out by themselves."""
        self._limit = limit
        self.notify()

    def set_paused(self, paused: bool) -> None:
        """Stop or go on handing out slots."""
        self._paused = paused
        self.notify()

    def notify(self) -> None:
        """Wake whoever waits in `changed`."""
        self._changed.set()

    async def changed(self) -> None:
        """Return after the next change. What it is about must be looked at again."""
        self._changed.clear()
        await self._changed.wait()
