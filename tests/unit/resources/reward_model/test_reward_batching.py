"""Which conversations share a batch, and what the queue in front of the workers promises."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.errors import NotReadyError, OverloadedError, RollmillError, UpstreamError, is_retryable
from rollmill_services.resources.reward_model.batching import BatchLimits, choose_batch
from rollmill_services.resources.reward_model.rendering import Rendered
from rollmill_services.resources.reward_model.scheduler import FAILURE_TYPE, QueueFullError, Scheduler
from rollmill_services.resources.reward_model.worker import WorkerLostError

PACKED = BatchLimits(100, 8, packed=True)
POISON = 666


def text(length: int, token: int = 1) -> Rendered:
    return Rendered("", (token,) * length)


class FakeWorker:
    """Scores a conversation with its length; waits for `gate` before each batch."""

    def __init__(self, name: str = "w", *, lost_after: int | None = None) -> None:
        self.name = name
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.began = asyncio.Event()
        self.closed = False
        self._lost_after = lost_after

    async def outputs(self, batch: Sequence[Rendered]) -> list[list[float]]:
        self.batches.append([len(item.ids) for item in batch])
        self.began.set()
        await self.gate.wait()
        if self._lost_after is not None and len(self.batches) > self._lost_after:
            raise WorkerLostError("CUDA error: an illegal memory access")
        if any(POISON in item.ids for item in batch):
            raise ValueError("cannot score this")
        return [[math.nan if 13 in item.ids else float(len(item.ids))] for item in batch]

    async def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def scheduling(
    *workers: FakeWorker, limits: BatchLimits = PACKED, max_queue_tokens: int = 10_000, max_wait: float = 0.0
) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(workers, limits, max_queue_tokens=max_queue_tokens, max_wait_seconds=max_wait)
    scheduler.open()
    try:
        yield scheduler
    finally:
        for worker in workers:
            worker.gate.set()
        await scheduler.close(10.0)
    assert all(worker.closed for worker in workers)


async def outcomes(futures: Sequence[asyncio.Future[list[float]]]) -> list[float | BaseException]:
    found = await asyncio.gather(*futures, return_exceptions=True)
    return [one if isinstance(one, BaseException) else one[0] for one in found]


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=60),
    st.integers(1, 300),
    st.integers(1, 10),
    st.booleans(),
)
def test_a_batch_has_the_oldest_and_keeps_within_its_limits(
    lengths: list[int], most_tokens: int, most_items: int, packed: bool
) -> None:
    limits = BatchLimits(most_tokens, most_items, packed)
    chosen = choose_batch(lengths, limits)

    assert chosen[0] == 0
    assert len(set(chosen)) == len(chosen) <= most_items
    assert len(chosen) == 1 or limits.slots([lengths[index] for index in chosen]) <= most_tokens


def test_a_padded_batch_takes_the_closest_lengths_and_a_packed_one_the_oldest() -> None:
    lengths = [50, 10, 200, 48, 52, 12]

    assert choose_batch(lengths, BatchLimits(1000, 3, packed=False)) == [0, 3, 4]
    assert choose_batch(lengths, BatchLimits(1000, 3, packed=True)) == [0, 1, 2]


async def test_33_conversations_with_batches_of_32_all_get_their_own_score() -> None:
    worker = FakeWorker()
    async with scheduling(worker, limits=BatchLimits(10_000, 32, packed=True)) as scheduler:
        scores = await outcomes(scheduler.submit([text(n) for n in range(1, 34)]))

    assert scores == [float(n) for n in range(1, 34)]
    assert [len(batch) for batch in worker.batches] == [32, 1]


async def test_one_conversation_with_two_workers_is_scored_once() -> None:
    workers = FakeWorker("a"), FakeWorker("b")
    async with scheduling(*workers) as scheduler:
        assert await outcomes(scheduler.submit([text(5)])) == [5.0]

    assert sum(len(worker.batches) for worker in workers) == 1


async def test_a_busy_worker_leaves_the_work_to_the_free_one() -> None:
    busy, free = FakeWorker("busy"), FakeWorker("free")
    busy.gate.clear()
    async with scheduling(busy, free, limits=BatchLimits(10, 1, packed=True)) as scheduler:
        futures = scheduler.submit([text(n) for n in range(1, 10)])
        await busy.began.wait()
        left = set(futures)
        while len(left) > 1:
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        busy.gate.set()
        await outcomes(futures)

    assert (len(busy.batches), len(free.batches)) == (1, 8)


async def test_batches_grow_while_the_worker_is_busy() -> None:
    worker = FakeWorker()
    worker.gate.clear()
    async with scheduling(worker) as scheduler:
        first = scheduler.submit([text(3)])
        await worker.began.wait()
        rest = [future for n in range(4, 9) for future in scheduler.submit([text(n)])]
        worker.gate.set()
        await outcomes([*first, *rest])

    assert worker.batches == [[3], [4, 5, 6, 7, 8]]


async def test_an_idle_worker_waits_a_moment_for_company() -> None:
    worker = FakeWorker()
    async with scheduling(worker, max_wait=0.2) as scheduler:
        first = scheduler.submit([text(3)])
        await asyncio.sleep(0.01)
        second = scheduler.submit([text(4)])
        await outcomes([*first, *second])

    assert worker.batches == [[3, 4]]


async def test_a_long_conversation_neither_starves_nor_holds_up_all_the_short_ones() -> None:
    worker = FakeWorker()
    worker.gate.clear()
    async with scheduling(worker, limits=BatchLimits(100, 50, packed=True)) as scheduler:
        blocker = scheduler.submit([text(1)])
        await worker.began.wait()
        short = scheduler.submit([text(4) for _ in range(20)])
        long = scheduler.submit([text(5_000)])
        more = scheduler.submit([text(4) for _ in range(20)])
        worker.gate.set()
        await outcomes([*blocker, *short, *long, *more])

    assert worker.batches == [[1], [4] * 25, [5_000], [4] * 15]


async def test_more_tokens_than_may_wait_are_refused_with_a_time_to_come_back() -> None:
    worker = FakeWorker()
    worker.gate.clear()
    async with scheduling(worker, limits=BatchLimits(50, 1, packed=True), max_queue_tokens=1_000) as scheduler:
        first = scheduler.submit([text(50)])
        await worker.began.wait()
        accepted: list[asyncio.Future[list[float]]] = []
        refused: list[OverloadedError] = []
        for _ in range(30):
            try:
                accepted += scheduler.submit([text(50)])
            except QueueFullError as error:
                refused.append(error)
        worker.gate.set()
        scores = await outcomes([*first, *accepted])
        again = await outcomes(scheduler.submit([text(50)]))

    assert (len(accepted), len(refused)) == (20, 10)
    assert (refused[0].status, is_retryable(refused[0])) == (429, True)
    assert (refused[0].retry_after or 0.0) > 0.0
    assert scores == [50.0] * 21
    assert again == [50.0]


async def test_a_call_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    async with scheduling(FakeWorker(), max_queue_tokens=100) as scheduler:
        assert await outcomes(scheduler.submit([text(90), text(91), text(92)])) == [90.0, 91.0, 92.0]


async def test_a_cancelled_conversation_is_not_scored_and_the_next_one_is_right() -> None:
    worker = FakeWorker()
    worker.gate.clear()
    async with scheduling(worker) as scheduler:
        first = scheduler.submit([text(3)])
        await worker.began.wait()
        [cancelled] = scheduler.submit([text(7)])
        cancelled.cancel()
        after = scheduler.submit([text(9)])
        await asyncio.sleep(0)
        assert scheduler.queued_tokens == 9
        worker.gate.set()
        assert await outcomes([*first, *after]) == [3.0, 9.0]

    assert worker.batches == [[3], [9]]
    assert scheduler.counters.cancelled == 1


async def test_only_the_conversation_that_spoils_a_batch_fails() -> None:
    async with scheduling(FakeWorker()) as scheduler:
        scores = await outcomes(scheduler.submit([text(2), text(3), text(4, POISON), text(5), text(6), text(7)]))

    [failure] = [score for score in scores if isinstance(score, BaseException)]
    assert [score for score in scores if score is not failure] == [2.0, 3.0, 5.0, 6.0, 7.0]
    assert isinstance(failure, UpstreamError)
    assert failure.extensions["upstream_type"] == FAILURE_TYPE
    assert not is_retryable(failure)
    assert "cannot score this" not in failure.detail  # its text may hold a conversation


async def test_a_score_that_is_not_a_number_is_a_failure_and_no_reward() -> None:
    async with scheduling(FakeWorker()) as scheduler:
        right, wrong = await outcomes(scheduler.submit([text(2), text(3, 13)]))

    assert right == 2.0
    assert isinstance(wrong, UpstreamError)
    assert "not finite" in wrong.detail
    assert scheduler.counters.non_finite == 1


async def test_a_retryable_failure_is_not_tried_on_each_conversation_of_its_batch() -> None:
    class DownEngine(FakeWorker):
        async def outputs(self, batch: Sequence[Rendered]) -> list[list[float]]:
            await super().outputs(batch)
            raise OverloadedError("the engine answered 503")

    worker = DownEngine()
    async with scheduling(worker) as scheduler:
        failures = await outcomes(scheduler.submit([text(2), text(3), text(4)]))

    assert worker.batches == [[2, 3, 4]]
    assert all(isinstance(failure, UpstreamError) and is_retryable(failure) for failure in failures)


async def test_what_a_lost_worker_was_scoring_is_scored_by_another_one() -> None:
    dying, living = FakeWorker("dying", lost_after=0), FakeWorker("living")
    living.gate.clear()
    async with scheduling(dying, living, limits=BatchLimits(100, 2, packed=True)) as scheduler:
        futures = scheduler.submit([text(n) for n in range(1, 9)])
        await dying.began.wait()
        living.gate.set()
        scores = await outcomes(futures)

        assert scheduler.report()["workers"] == 1

    assert scores == [float(n) for n in range(1, 9)]
    assert len(dying.batches) == 1


async def test_with_the_last_worker_lost_everything_waiting_fails_and_nothing_is_taken() -> None:
    told: list[str] = []
    worker = FakeWorker(lost_after=0)
    scheduler = Scheduler(
        [worker], BatchLimits(10, 1, packed=True), max_queue_tokens=1000, max_wait_seconds=0.0, on_lost=told.append
    )
    scheduler.open()
    failures = await outcomes(scheduler.submit([text(5), text(6)]))

    assert all(isinstance(failure, NotReadyError) for failure in failures)
    assert len(told) == 1
    with pytest.raises(NotReadyError, match="no worker"):
        scheduler.submit([text(5)])
    await scheduler.close(1.0)


async def test_closing_finishes_what_was_accepted_and_takes_nothing_more() -> None:
    worker = FakeWorker()
    worker.gate.clear()
    scheduler = Scheduler([worker], BatchLimits(10, 1, packed=True), max_queue_tokens=1000, max_wait_seconds=60.0)
    scheduler.open()
    futures = scheduler.submit([text(n) for n in range(1, 11)])
    closing = asyncio.create_task(scheduler.close(30.0))
    await worker.began.wait()
    with pytest.raises(NotReadyError, match="shutting down"):
        scheduler.submit([text(1)])
    worker.gate.set()
    await closing

    assert await outcomes(futures) == [float(n) for n in range(1, 11)]
    assert worker.closed


async def test_what_is_not_finished_in_time_fails_as_not_ready() -> None:
    worker = FakeWorker()
    worker.gate.clear()
    scheduler = Scheduler([worker], BatchLimits(10, 1, packed=True), max_queue_tokens=1000, max_wait_seconds=0.0)
    scheduler.open()
    futures = scheduler.submit([text(1), text(2)])
    await worker.began.wait()
    await scheduler.close(0.01)

    failures = await outcomes(futures)
    assert [type(failure) for failure in failures] == [NotReadyError, NotReadyError]
    assert all(isinstance(failure, RollmillError) and failure.status == 503 for failure in failures)
