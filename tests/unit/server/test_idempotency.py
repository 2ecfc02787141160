import asyncio

import pytest

from rollmill.errors import InputError
from rollmill.server.calls import Answer
from rollmill.server.idempotency import KeptAnswers
from rollmill.testing import FakeClock


class Work:
    """Counts its runs; each run waits for the gate."""

    def __init__(self, body: bytes = b"done", *, status: int = 200, open_gate: bool = True) -> None:
        self.runs = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self._answer = Answer(body, status)
        if open_gate:
            self.gate.set()

    async def __call__(self) -> Answer:
        self.runs += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self._answer


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_repeat_gets_the_remembered_answer() -> None:
    kept, work = KeptAnswers(), Work()
    first = await kept.once("k", work)
    assert await kept.once("k", work) is first
    assert work.runs == 1


async def test_different_keys_are_different_calls() -> None:
    kept, work = KeptAnswers(), Work()
    await kept.once("a", work)
    await kept.once("b", work)
    assert work.runs == 2


async def test_a_repeat_joins_the_call_in_flight() -> None:
    kept, work = KeptAnswers(), Work(open_gate=False)
    calls = [asyncio.create_task(kept.once("k", work)) for _ in range(5)]
    await settle()
    work.gate.set()
    assert [answer.body for answer in await asyncio.gather(*calls)] == [b"done"] * 5
    assert work.runs == 1


async def test_an_answer_that_is_not_to_be_kept_is_given_once() -> None:
    kept, runs = KeptAnswers(), 0

    async def work() -> Answer:
        nonlocal runs
        runs += 1
        return Answer(b"killed", keep=False)

    await kept.once("k", work)
    await kept.once("k", work)
    assert runs == 2


async def test_errors_reach_every_waiter_and_are_not_remembered() -> None:
    kept, gate = KeptAnswers(), asyncio.Event()

    async def fail() -> Answer:
        await gate.wait()
        raise InputError("no")

    calls = [asyncio.create_task(kept.once("k", fail)) for _ in range(2)]
    await settle()
    gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [InputError, InputError]
    assert (await kept.once("k", Work())).body == b"done"


async def test_an_error_answer_is_not_remembered() -> None:
    kept, work = KeptAnswers(), Work(status=500)
    await kept.once("k", work)
    await kept.once("k", work)
    assert work.runs == 2


async def test_a_joined_repeat_runs_the_work_itself_when_the_first_call_is_cancelled() -> None:
    kept, work = KeptAnswers(), Work(open_gate=False)
    first = asyncio.create_task(kept.once("k", work))
    await settle()
    repeats = [asyncio.create_task(kept.once("k", work)) for _ in range(3)]
    await settle()
    first.cancel()
    await settle()
    work.gate.set()
    assert [(await repeat).body for repeat in repeats] == [b"done"] * 3
    assert first.cancelled()
    assert work.runs == 2


async def test_a_cancelled_repeat_does_not_disturb_the_first_call() -> None:
    kept, work = KeptAnswers(), Work(open_gate=False)
    first = asyncio.create_task(kept.once("k", work))
    await settle()
    repeat = asyncio.create_task(kept.once("k", work))
    await settle()
    repeat.cancel()
    await settle()
    work.gate.set()
    assert (await first).body == b"done"
    assert work.cancelled == 0


async def test_old_answers_are_forgotten() -> None:
    clock, work = FakeClock(), Work()
    kept = KeptAnswers(max_age_seconds=10, clock=clock)
    await kept.once("k", work)
    clock.advance(10)
    await kept.once("k", work)
    assert work.runs == 1
    clock.advance(0.1)
    await kept.once("k", work)
    assert work.runs == 2


async def test_the_number_of_answers_is_bounded_and_the_oldest_goes_first() -> None:
    kept, works = KeptAnswers(max_entries=2), {key: Work() for key in "abc"}
    for key in "abc":
        await kept.once(key, works[key])
    for key in "cba":
        await kept.once(key, works[key])
    assert [works[key].runs for key in "abc"] == [2, 1, 1]


async def test_the_bytes_of_answers_are_bounded() -> None:
    kept, small, big = KeptAnswers(max_bytes=10), Work(b"x" * 6), Work(b"y" * 6)
    await kept.once("small", small)
    await kept.once("big", big)
    await kept.once("big", big)
    await kept.once("small", small)
    assert (small.runs, big.runs) == (2, 1)


async def test_an_answer_too_big_to_keep_pushes_no_other_out() -> None:
    kept, small, huge = KeptAnswers(max_bytes=10), Work(b"x"), Work(b"y" * 11)
    await kept.once("small", small)
    await kept.once("huge", huge)
    await kept.once("huge", huge)
    await kept.once("small", small)
    assert (small.runs, huge.runs) == (1, 2)


async def test_renewing_an_answer_that_became_too_old_counts_its_bytes_once() -> None:
    clock = FakeClock()
    kept = KeptAnswers(max_bytes=10, max_age_seconds=1, clock=clock)
    for _ in range(5):
        await kept.once("k", Work(b"x" * 4))
        clock.advance(2)
    work = Work(b"x" * 4)
    other = Work(b"z" * 4)
    await kept.once("k", work)
    await kept.once("other", other)
    await kept.once("k", work)
    await kept.once("other", other)
    assert (work.runs, other.runs) == (1, 1)


async def test_whoever_is_only_a_repeat_need_not_wait_to_leave() -> None:
    kept, work = KeptAnswers(), Work(open_gate=False)
    first = asyncio.create_task(kept.once("k", work))
    await settle()
    repeat = asyncio.create_task(kept.once("k", work))
    await settle()
    await asyncio.wait_for(kept.until_alone("k", repeat, 60.0), 5)
    alone = asyncio.create_task(kept.until_alone("k", first, 0.0))
    await settle()
    assert not alone.done()
    repeat.cancel()
    await asyncio.wait_for(alone, 5)
    work.gate.set()
    await first


async def test_cancelling_the_only_call_cancels_the_work() -> None:
    kept, work = KeptAnswers(), Work(open_gate=False)
    call = asyncio.create_task(kept.once("k", work))
    await settle()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert work.cancelled == 1
