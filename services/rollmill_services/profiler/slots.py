import asyncio
from collections.abc import Callable
from typing import TypeVar

from rollmill.context import get_context
from rollmill.errors import DeadlineError

T = TypeVar("T")


class Slots:
    """Runs work in threads, so that the event loop goes on, and only so much of it at once.

    Args:
        count: how much; the rest waits.
        timeout_seconds: longest wait and work together, when the caller sets no earlier deadline.
    """

    def __init__(self, count: int, *, timeout_seconds: float) -> None:
        self._free = asyncio.Semaphore(count)
        self._timeout_seconds = timeout_seconds
        self.waiting = 0
        """Work that waits for a slot."""

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns.

        Raises:
            DeadlineError: there was no answer in time.
        """
        try:
            async with asyncio.timeout(get_context().sooner(self._timeout_seconds).remaining()):
                await self._acquire()
                thread = asyncio.ensure_future(asyncio.to_thread(work))
                thread.add_done_callback(self._ended)
                return await asyncio.shield(thread)  # a thread cannot be stopped: it keeps its slot until it ends
        except TimeoutError:
            raise DeadlineError("the profile was not ready within the time given to it") from None

    async def _acquire(self) -> None:
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1

    def _ended(self, thread: "asyncio.Future[T]") -> None:
        self._free.release()
        if not thread.cancelled():
            thread.exception()  # looked at here, in case nobody waits for it any more
