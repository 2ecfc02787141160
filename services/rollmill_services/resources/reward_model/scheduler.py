"""One queue in front of several workers.

A worker that is free takes the next batch, so work goes where the fewest tokens are outstanding, and batches grow by
themselves while all are busy; only an idle worker waits a few milliseconds for company. What is bounded is the number
of waiting tokens. A batch that fails is halved until the conversation that spoils it fails alone.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import structlog

from rollmill.contracts.json import JsonObject
from rollmill.errors import (
    NotReadyError,
    OverloadedError,
    RollmillError,
    UpstreamError,
    is_retryable,
)
from rollmill_services.resources.reward_model.batching import WINDOW, BatchLimits, choose_batch
from rollmill_services.resources.reward_model.rendering import Rendered
from rollmill_services.resources.reward_model.worker import Worker, WorkerLostError

log = structlog.get_logger(__name__)

FAILURE_TYPE = "reward_model_failed"
"""Failure class of a rollout whose scoring failed; it never gets a reward."""
_SLOWEST_TOKENS_PER_SECOND = 100.0


class QueueFullError(OverloadedError):
    """Too many tokens wait already; `retry_after` says when they should be done."""

    slug, title, status = "queue-full", "Queue full", 429


def scoring_failed(detail: str, *, retryable: bool) -> UpstreamError:
    """Return the error of a conversation that could not be scored."""
    return UpstreamError(detail, upstream_type=FAILURE_TYPE, retryable=retryable)


@dataclass(slots=True)
class Counters:
    """What a scheduler has done since its start."""

    batches: int = 0
    conversations: int = 0
    tokens: int = 0
    slots: int = 0
    """Tokens with padding: `slots / tokens` is what padding costs."""
    forward_seconds: float = 0.0
    wait_seconds: float = 0.0
    """Sum over conversations, from arrival to the start of their batch."""
    rejected: int = 0
    cancelled: int = 0
    failed: int = 0
    non_finite: int = 0
    workers_lost: int = 0


@dataclass(eq=False, slots=True)
class _Waiting:
    item: Rendered
    future: asyncio.Future[list[float]]
    arrived: float
    moved: bool = False
    """Whether a worker was lost with it before."""

    @property
    def size(self) -> int:
        return len(self.item.ids)


class Scheduler:
    """Scores conversations in batches. All calls from one event loop.

    Args:
        workers: at least one.
        limits: of a batch.
        max_queue_tokens: more are refused.
        max_wait_seconds: how long an idle worker waits for a fuller batch.
        on_lost: told when no worker is left, and why.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        limits: BatchLimits,
        *,
        max_queue_tokens: int,
        max_wait_seconds: float,
        on_lost: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._workers = workers
        self._alive = list(workers)
        self._limits = limits
        self._max_queue_tokens = max_queue_tokens
        self._max_wait = max_wait_seconds
        self._on_lost = on_lost
        self._waiting: dict[_Waiting, None] = {}
        self._pending: set[asyncio.Future[list[float]]] = set()
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = ""
        self.queued_tokens = 0
        self.counters = Counters()

    def open(self) -> None:
        """Set the workers to work."""
        self._tasks = [asyncio.create_task(self._serve(worker), name=worker.name) for worker in self._workers]

    def submit(self, items: Sequence[Rendered]) -> list[asyncio.Future[list[float]]]:
        """Queue conversations, all or none; each future gets the outputs, or a `RollmillError`.

        Cancelling a future takes its conversation out of the queue.

        Raises:
            NotReadyError: it is closing, or no worker is left.
            QueueFullError: others wait, and with these it would be too many tokens.
        """
        if self._closed:
            raise NotReadyError(self._closed, retry_after=1.0)
        tokens = sum(len(item.ids) for item in items)
        if self._waiting and self.queued_tokens + tokens > self._max_queue_tokens:
            self.counters.rejected += len(items)
            raise QueueFullError(f"{self.queued_tokens} tokens wait to be scored", retry_after=self._seconds_of_work())
        return [self._add(item) for item in items]

    async def close(self, drain_seconds: float) -> None:
        """Take nothing more, finish what was accepted within the time, fail the rest and stop the workers."""
        self._closed = "the reward model is shutting down"
        self._arrived.set()
        if self._pending:
            await asyncio.wait(self._pending, timeout=drain_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(self._pending, NotReadyError(self._closed, retry_after=1.0))
        for worker in self._workers:
            await worker.close()

    def report(self) -> JsonObject:
        """Return the counters, and how long the queue is."""
        queue = {"queued_conversations": len(self._waiting), "queued_tokens": self.queued_tokens}
        return {**queue, "workers": len(self._alive), **asdict(self.counters)}

    def _seconds_of_work(self) -> float:
        done = self.counters
        speed = done.tokens / done.forward_seconds * len(self._alive) if done.forward_seconds else 0.0
        return max(0.1, round(self.queued_tokens / max(speed, _SLOWEST_TOKENS_PER_SECOND), 2))

    def _add(self, item: Rendered) -> asyncio.Future[list[float]]:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(item, loop.create_future(), loop.time())
        waiting.future.add_done_callback(lambda future: self._settled(waiting, future))
        self._waiting[waiting] = None
        self._pending.add(waiting.future)
        self.queued_tokens += waiting.size
        self._arrived.set()
        return waiting.future

    def _settled(self, waiting: _Waiting, future: asyncio.Future[list[float]]) -> None:
        self._pending.discard(future)
        self._remove(waiting)
        self.counters.cancelled += future.cancelled()

    def _remove(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:
            del self._waiting[waiting]
            self.queued_tokens -= waiting.size

    async def _serve(self, worker: Worker) -> None:
        while True:
            await self._worthwhile()
            batch = self._take()
            try:
                await self._score(worker, batch)
            except WorkerLostError as error:
                self._lose(worker, [waiting for waiting in batch if not waiting.future.done()], error)
                return

    async def _worthwhile(self) -> None:
        """Wait until there is a batch to take: at least one, and full or old enough."""
        while not self._is_due():
            self._arrived.clear()
            oldest = next(iter(self._waiting), None)
            until = None if oldest is None else oldest.arrived + self._max_wait
            try:
                async with asyncio.timeout_at(until):
                    await self._arrived.wait()
            except TimeoutError:
                continue

    def _is_due(self) -> bool:
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        full = self.queued_tokens >= self._limits.max_tokens or len(self._waiting) >= self._limits.max_items
        return full or bool(self._closed) or asyncio.get_running_loop().time() >= oldest.arrived + self._max_wait

    def _take(self) -> list[_Waiting]:
        oldest = list(islice(self._waiting, WINDOW))
        batch = [oldest[index] for index in choose_batch([waiting.size for waiting in oldest], self._limits)]
        now = asyncio.get_running_loop().time()
        for waiting in batch:
            self._remove(waiting)
            self.counters.wait_seconds += now - waiting.arrived
        return batch

    async def _score(self, worker: Worker, batch: list[_Waiting]) -> None:
        batch = [waiting for waiting in batch if not waiting.future.done()]
        if not batch:
            return
        began = time.perf_counter()
        try:
            outputs = await worker.outputs([waiting.item for waiting in batch])
        except WorkerLostError:
            raise
        except Exception as error:
            await self._failed(worker, batch, error)
            return
        self._count(batch, time.perf_counter() - began)
        for waiting, values in zip(batch, outputs, strict=True):
            self._settle(waiting, values)

    async def _failed(self, worker: Worker, batch: list[_Waiting], error: Exception) -> None:
        told = error if isinstance(error, RollmillError) else None
        retryable = told is not None and is_retryable(told)  # an engine that is down is down for each of them
        if len(batch) > 1 and not retryable:
            middle = len(batch) // 2
            await self._score(worker, batch[:middle])
            await self._score(worker, batch[middle:])
            return
        if told is None:
            log.error("scoring_failed", worker=worker.name, conversations=len(batch), exc_info=error)
        detail = told.detail if told else f"the reward model failed: {type(error).__name__}"
        self._fail([waiting.future for waiting in batch], scoring_failed(detail, retryable=retryable))

    def _settle(self, waiting: _Waiting, values: list[float]) -> None:
        if waiting.future.done():
            return
        if all(map(math.isfinite, values)):
            waiting.future.set_result(values)
            return
        self.counters.non_finite += 1
        self._fail(
            [waiting.future], scoring_failed("the reward model gave a score that is not finite", retryable=False)
        )

    def _fail(
        self, futures: Sequence[asyncio.Future[list[float]]] | set[asyncio.Future[list[float]]], error: RollmillError
    ) -> None:
        for future in list(futures):
            if not future.done():
                self.counters.failed += 1
                future.set_exception(error)

    def _count(self, batch: list[_Waiting], seconds: float) -> None:
        lengths = [waiting.size for waiting in batch]
        counters = self.counters
        counters.batches += 1
        counters.conversations += len(batch)
        counters.tokens += sum(lengths)
        counters.slots += self._limits.slots(lengths)
        counters.forward_seconds += seconds

    def _lose(self, worker: Worker, left: list[_Waiting], error: WorkerLostError) -> None:
        """Go on without a worker: what it was scoring goes to the front of the queue, once."""
        log.error("worker_lost", worker=worker.name, left=len(self._alive) - 1, detail=str(error))
        self._alive.remove(worker)
        self.counters.workers_lost += 1
        again = [waiting for waiting in left if not waiting.moved]
        self._fail(
            [waiting.future for waiting in left if waiting.moved],
            scoring_failed("two workers were lost with this conversation", retryable=False),
        )
        for waiting in again:
            waiting.moved = True
            self.queued_tokens += waiting.size
        self._waiting = dict.fromkeys([*again, *self._waiting])
        self._arrived.set()
        if not self._alive:
            self._closed = f"no worker of the reward model is left: {error}"
            self._fail(self._pending, NotReadyError(self._closed, retry_after=30.0))
            self._on_lost(self._closed)
