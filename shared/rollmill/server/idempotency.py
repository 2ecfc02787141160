import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from rollmill.server.calls import Answer


class _AbandonedError(Exception):
    """The call that a repeat had joined was cancelled; the repeat has to do the work itself."""


class KeptAnswers:
    """Runs each keyed call once: a repeat joins the call in flight or gets its recent answer again.

    Only successes are remembered, so a call that failed can be tried again under its key.

    Args:
        max_entries: most answers remembered.
        max_bytes: most bytes of answers remembered.
        max_age_seconds: an answer is forgotten after this time.
    """

    def __init__(
        self,
        *,
        max_entries: int = 4096,
        max_bytes: int = 32 * 1024 * 1024,
        max_age_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answers: OrderedDict[str, tuple[float, Answer]] = OrderedDict()
        self._running: dict[str, asyncio.Future[Answer]] = {}
        self._leaders: dict[str, asyncio.Task[object] | None] = {}
        self._waiters: dict[str, int] = {}
        self._left = asyncio.Event()
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_age_seconds = max_age_seconds
        self._clock = clock

    async def until_alone(self, key: str, caller: "asyncio.Task[object] | None", grace_seconds: float) -> None:
        """Wait out the grace time, and then for as long as repeats of the call in flight wait for its answer.

        Returns at once when `caller` is itself such a repeat: nobody waits for it.
        """
        if self._leaders.get(key) is not caller:
            return
        await asyncio.sleep(grace_seconds)
        while key in self._waiters:
            self._left.clear()
            await self._left.wait()
            await asyncio.sleep(grace_seconds)

    async def once(self, key: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer of `work`, running it only if this key is neither in flight nor remembered."""
        kept = self._answers.get(key)
        if kept is not None and self._clock() - kept[0] <= self._max_age_seconds:
            return kept[1]
        running = self._running.get(key)
        if running is None:
            return await self._lead(key, work)
        try:
            return await self._join(key, running)
        except _AbandonedError:
            return await self.once(key, work)

    async def _join(self, key: str, running: asyncio.Future[Answer]) -> Answer:
        self._waiters[key] = self._waiters.get(key, 0) + 1
        try:
            return await asyncio.shield(running)
        finally:
            self._waiters[key] -= 1
            if not self._waiters[key]:
                del self._waiters[key]
                self._left.set()

    async def _lead(self, key: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._running[key] = future
        self._leaders[key] = asyncio.current_task()
        try:
            answer = await work()
        except BaseException as error:
            future.set_exception(error if isinstance(error, Exception) else _AbandonedError())
            future.exception()  # nobody may be waiting for it: mark it as seen
            raise
        finally:
            del self._running[key], self._leaders[key]
        future.set_result(answer)
        if answer.keep and answer.status < 300 and answer.stream is None:
            self._remember(key, answer)
        return answer

    def _remember(self, key: str, answer: Answer) -> None:
        now = self._clock()
        if key in self._answers:  # it had become too old
            self._bytes -= len(self._answers.pop(key)[1].body)
        if len(answer.body) > self._max_bytes:
            return
        self._answers[key] = (now, answer)
        self._bytes += len(answer.body)
        while self._answers:
            oldest_key = next(iter(self._answers))
            when, oldest = self._answers[oldest_key]
            fits = len(self._answers) <= self._max_entries and self._bytes <= self._max_bytes
            if fits and now - when <= self._max_age_seconds:
                return
            del self._answers[oldest_key]
            self._bytes -= len(oldest.body)
