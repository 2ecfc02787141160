import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from rollmill.collection.dispatcher import MOST_HELD, MOST_HELD_BYTES, Dispatcher, backoff, should_retry
from rollmill.collection.limiter import Limiter
from rollmill.collection.outcomes import Assignment, Completed, Failed
from rollmill.collection.window import START
from rollmill.contracts.failures import Failure
from rollmill.contracts.rows import RowKey
from rollmill.testing import FakeClock

COMPLETED = Completed({"reward": 1.0}, b"")
RETRYABLE = Failed(Failure(boundary="model", type="t", detail="", retryable=True), "t")
FINAL = Failed(Failure(boundary="model", type="t", detail="", retryable=False), "t")


class FakeRunner:
    """Answers from a function of task number and attempt; waits at a gate when it has one."""

    def __init__(self, answer: Callable[[int, int], Completed | Failed], *, gated: bool = False) -> None:
        self._answer = answer
        self._gate: asyncio.Semaphore | None = asyncio.Semaphore(0) if gated else None
        self.attempts: list[tuple[int, int]] = []
        self.running = 0
        self.most = 0
        self.cancelled = 0

    def let_through(self, number: int) -> None:
        assert self._gate is not None
        for _ in range(number):
            self._gate.release()

    async def attempt(self, assignment: Assignment, attempt: int) -> Completed | Failed:
        self.attempts.append((assignment.key.task, attempt))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await (self._gate.acquire() if self._gate else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return self._answer(assignment.key.task, attempt)


class FakeSink:
    """Remembers outcomes; breaks at one task when told to."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.done: list[int] = []
        self.failures: list[tuple[int, int, bool]] = []
        self._breaks_at = breaks_at

    async def completed(self, assignment: Assignment, outcome: Completed) -> None:
        if assignment.key.task == self._breaks_at:
            raise OSError("disk full")
        self.done.append(assignment.key.task)

    async def attempt_failed(self, assignment: Assignment, attempt: int, failed: Failed, *, given_up: bool) -> None:
        self.failures.append((assignment.key.task, attempt, given_up))


async def assignments(number: int) -> AsyncIterator[Assignment]:
    for task in range(number):
        yield Assignment(RowKey(task, 0), "a", {}, b"")


def always(outcome: Completed | Failed) -> Callable[[int, int], Completed | Failed]:
    return lambda task, attempt: outcome


def dispatcher(
    runner: FakeRunner,
    sink: FakeSink,
    limiter: Limiter,
    *,
    max_attempts: int = 3,
    earlier: dict[RowKey, int] | None = None,
    clock: FakeClock | None = None,
) -> Dispatcher:
    sleep = (clock or FakeClock()).sleep
    return Dispatcher(runner, sink, limiter, max_attempts=max_attempts, earlier_attempts=earlier, sleep=sleep)


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def stopped(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("limit", [1, 3, 64])
async def test_as_many_rollouts_run_at_once_as_the_limit_says_and_no_more(limit: int) -> None:
    runner, sink, limiter = FakeRunner(always(COMPLETED)), FakeSink(), Limiter(limit)
    await dispatcher(runner, sink, limiter).run(assignments(200))

    assert runner.most == limit
    assert sorted(sink.done) == list(range(200))
    assert limiter.in_use == 0


async def test_assignments_are_drawn_only_when_there_is_a_slot_for_them() -> None:
    drawn: list[int] = []

    async def counted() -> AsyncIterator[Assignment]:
        async for assignment in assignments(1000):
            drawn.append(assignment.key.task)
            yield assignment

    runner = FakeRunner(always(COMPLETED), gated=True)
    task = asyncio.create_task(dispatcher(runner, FakeSink(), Limiter(5)).run(counted()))
    await turns(50)
    assert len(drawn) == 5
    await stopped(task)


async def test_a_retryable_failure_is_tried_again_until_the_attempts_are_used_up() -> None:
    runner, sink, clock = FakeRunner(always(RETRYABLE)), FakeSink(), FakeClock()
    await dispatcher(runner, sink, Limiter(1), clock=clock).run(assignments(1))

    assert runner.attempts == [(0, 0), (0, 1), (0, 2)]
    assert sink.failures == [(0, 0, False), (0, 1, False), (0, 2, True)]
    assert len(clock.slept) == 2


async def test_a_rollout_that_recovers_is_completed() -> None:
    runner, sink = FakeRunner(lambda _, attempt: COMPLETED if attempt else RETRYABLE), FakeSink()
    await dispatcher(runner, sink, Limiter(2)).run(assignments(3))

    assert sorted(sink.done) == [0, 1, 2]
    assert sorted(sink.failures) == [(0, 0, False), (1, 0, False), (2, 0, False)]


async def test_a_failure_that_no_retry_helps_is_given_up_on_at_once() -> None:
    runner, sink = FakeRunner(always(FINAL)), FakeSink()
    await dispatcher(runner, sink, Limiter(1)).run(assignments(1))

    assert sink.failures == [(0, 0, True)]


async def test_attempts_of_earlier_sessions_count() -> None:
    runner, sink = FakeRunner(always(RETRYABLE)), FakeSink()
    earlier = {RowKey(0, 0): 2, RowKey(1, 0): 1}
    await dispatcher(runner, sink, Limiter(1), earlier=earlier).run(assignments(3))

    assert runner.attempts == [(0, 2), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]


async def test_one_failing_rollout_does_not_cancel_its_siblings() -> None:
    runner, sink = FakeRunner(lambda task, _: FINAL if task == 1 else COMPLETED), FakeSink()
    await dispatcher(runner, sink, Limiter(4)).run(assignments(10))

    assert sorted(sink.done) == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert runner.cancelled == 0


async def test_a_sink_that_fails_ends_the_run_and_stops_what_is_in_flight() -> None:
    runner, sink, limiter = FakeRunner(always(COMPLETED)), FakeSink(breaks_at=5), Limiter(4)
    with pytest.raises(ExceptionGroup) as caught:
        await dispatcher(runner, sink, limiter).run(assignments(1000))

    assert [str(error) for error in caught.value.exceptions] == ["disk full"]
    assert len(runner.attempts) < 20
    assert (runner.running, limiter.in_use) == (0, 0)


async def test_assignments_that_break_off_end_the_run() -> None:
    async def broken() -> AsyncIterator[Assignment]:
        yield Assignment(RowKey(0, 0), "a", {}, b"")
        raise ValueError("no more")

    limiter = Limiter(4)
    with pytest.raises(ExceptionGroup):
        await dispatcher(FakeRunner(always(COMPLETED), gated=True), FakeSink(), limiter).run(broken())
    assert limiter.in_use == 0


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 10])
async def test_a_cancellation_at_any_moment_stops_everything_and_frees_every_slot(after: int) -> None:
    runner, limiter = FakeRunner(always(COMPLETED), gated=True), Limiter(8)
    task = asyncio.create_task(dispatcher(runner, FakeSink(), limiter).run(assignments(100)))
    await turns(after)
    await stopped(task)
    await turns(2)

    assert (runner.running, limiter.in_use) == (0, 0)


async def test_a_pause_starts_nothing_and_lets_what_is_in_flight_finish() -> None:
    runner, sink, limiter = FakeRunner(always(COMPLETED), gated=True), FakeSink(), Limiter(3)
    task = asyncio.create_task(dispatcher(runner, sink, limiter).run(assignments(10)))
    await turns()
    limiter.set_paused(True)
    runner.let_through(10)
    await turns()
    assert limiter.paused
    assert sorted(sink.done) == [0, 1, 2]
    assert len(runner.attempts) == 3

    limiter.set_paused(False)
    await task
    assert sorted(sink.done) == list(range(10))


async def test_concurrency_can_be_raised_and_lowered_while_running() -> None:
    runner, limiter = FakeRunner(always(COMPLETED), gated=True), Limiter(2)
    task = asyncio.create_task(dispatcher(runner, FakeSink(), limiter).run(assignments(100)))
    await turns()
    assert runner.running == 2

    limiter.set_limit(7)
    await turns(40)
    assert runner.running == limiter.in_use == 7

    limiter.set_limit(3)
    runner.let_through(2)
    await turns()
    assert (runner.running, len(runner.attempts)) == (5, 7)

    runner.let_through(4)
    await turns()
    assert (runner.running, limiter.limit) == (3, 3)
    await stopped(task)


async def test_rollouts_that_wait_for_a_throttled_agent_leave_the_slots_to_the_others() -> None:
    overloaded = Failed(Failure(boundary="agent", type="overloaded", detail="", retryable=True), "overloaded")
    clock = FakeClock()

    class Throttled(FakeRunner):
        async def attempt(self, assignment: Assignment, attempt: int) -> Completed | Failed:
            if assignment.agent == "free":
                return COMPLETED
            await super().attempt(assignment, attempt)
            return overloaded if attempt < 2 else COMPLETED

    async def throttled_first() -> AsyncIterator[Assignment]:
        for task in range(1100):
            yield Assignment(RowKey(task, 0), "throttled" if task < 1000 else "free", {}, b"")

    runner, sink, limiter = Throttled(always(COMPLETED), gated=True), FakeSink(), Limiter(800)
    task = asyncio.create_task(dispatcher(runner, sink, limiter, clock=clock).run(throttled_first()))
    await turns(50)
    assert runner.running == START
    assert sorted(sink.done) == list(range(1000, 1100))
    runner.let_through(10_000)
    await task
    assert sorted(sink.done) == list(range(1100))


async def test_what_waits_is_bounded_in_number_and_in_bytes() -> None:
    drawn = 0

    async def endless(line: bytes) -> AsyncIterator[Assignment]:
        nonlocal drawn
        while True:
            drawn += 1
            yield Assignment(RowKey(drawn, 0), "a", {}, line)

    for line, most in ((b"", START + MOST_HELD), (b"x" * (1 << 20), START + MOST_HELD_BYTES // (1 << 20))):
        drawn = 0
        runner = FakeRunner(always(COMPLETED), gated=True)
        task = asyncio.create_task(dispatcher(runner, FakeSink(), Limiter(5000)).run(endless(line)))
        await turns()
        assert drawn == most
        await stopped(task)


async def test_a_stop_starts_nothing_more_and_lets_what_is_in_flight_finish() -> None:
    runner, sink, limiter = FakeRunner(always(COMPLETED), gated=True), FakeSink(), Limiter(3)
    work = Dispatcher(runner, sink, limiter, max_attempts=3, grace_seconds=10)
    task = asyncio.create_task(work.run(assignments(10)))
    await turns()
    work.stop()
    runner.let_through(3)
    await task
    assert (sorted(sink.done), len(runner.attempts), runner.cancelled, limiter.in_use) == ([0, 1, 2], 3, 0, 0)


async def test_after_the_grace_time_of_a_stop_what_is_in_flight_is_cancelled_and_fails_nothing() -> None:
    runner, sink, limiter = FakeRunner(always(COMPLETED), gated=True), FakeSink(), Limiter(3)
    work = Dispatcher(runner, sink, limiter, max_attempts=3, grace_seconds=0.01)
    task = asyncio.create_task(work.run(assignments(10)))
    await turns()
    work.stop()
    await asyncio.wait_for(task, 10)
    assert (sink.done, sink.failures, runner.cancelled, limiter.in_use) == ([], [], 3, 0)


async def test_a_stop_ends_the_waits_between_attempts() -> None:
    runner, sink = FakeRunner(always(RETRYABLE)), FakeSink()
    never = asyncio.Event()

    async def sleep(seconds: float) -> None:
        await never.wait()

    work = Dispatcher(runner, sink, Limiter(3), max_attempts=3, sleep=sleep)
    task = asyncio.create_task(work.run(assignments(2)))
    await turns()
    work.stop()
    await asyncio.wait_for(task, 10)
    assert sorted(sink.failures) == [(0, 0, False), (1, 0, False)]


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 4), st.integers(1, 6))
@budget(max_examples=40)
def test_every_rollout_is_settled_exactly_once(fails: list[int], max_attempts: int, limit: int) -> None:
    runner = FakeRunner(lambda task, attempt: RETRYABLE if attempt < fails[task] else COMPLETED)
    sink = FakeSink()
    asyncio.run(dispatcher(runner, sink, Limiter(limit), max_attempts=max_attempts).run(assignments(len(fails))))

    given_up = [task for task, _, last in sink.failures if last]
    assert sorted(sink.done + given_up) == list(range(len(fails)))
    assert set(given_up) == {task for task, failures in enumerate(fails) if failures >= max_attempts}
    assert Counter(task for task, _ in runner.attempts) == Counter(
        {task: min(failures + 1, max_attempts) for task, failures in enumerate(fails)}
    )


def test_what_an_agent_classified_or_called_terminal_is_not_retried_in_this_session() -> None:
    classified = Failed(RETRYABLE.failure, "c", row={})
    terminal = Failed(RETRYABLE.failure, "c", terminal=True)

    assert should_retry(RETRYABLE, attempt=0, max_attempts=2)
    assert not should_retry(RETRYABLE, attempt=1, max_attempts=2)
    assert not any(should_retry(failed, attempt=0, max_attempts=9) for failed in (classified, terminal, FINAL))


def test_the_wait_doubles_up_to_a_cap_with_full_jitter() -> None:
    bounds = [backoff(attempt, lambda low, high: high) for attempt in (1, 2, 3, 7, 8, 100)]

    assert bounds == [0.2, 0.4, 0.8, 12.8, 15.0, 15.0]
    assert backoff(5, lambda low, high: low) == 0.0
