import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.collection.outcomes import Completed, Failed
from rollmill.collection.window import COOLDOWN_SECONDS, Window
from rollmill.contracts.failures import Failure
from rollmill.testing import FakeClock

DONE = Completed({"reward": 1.0}, b"{}")


def failed(kind: str) -> Failed:
    return Failed(Failure(boundary="agent", type=kind, detail="", retryable=True), kind)


async def answer(window: Window, outcome: Completed | Failed, times: int = 1) -> None:
    for _ in range(times):
        await window.acquire()
        window.note(outcome)
        window.release()


async def test_it_doubles_with_each_full_window_until_the_first_refusal() -> None:
    window = Window(start=4)
    await answer(window, DONE, 4)
    assert window.size == 8
    await answer(window, DONE, 8)
    assert window.size == 16


async def test_after_a_refusal_it_halves_and_then_grows_by_about_one_per_full_window() -> None:
    window = Window(start=8)
    for _ in range(8):
        await window.acquire()
    window.note(failed("overloaded"))
    for _ in range(8):
        window.release()
    assert window.size == 4
    await answer(window, DONE, 5)
    assert window.size == 5


async def test_a_burst_of_refusals_shrinks_it_once() -> None:
    clock = FakeClock()
    window = Window(start=64, clock=clock)
    for _ in range(64):
        await window.acquire()
    for _ in range(10):
        window.note(failed("overloaded"))
    assert window.size == 32
    clock.advance(COOLDOWN_SECONDS)
    window.note(failed("connection-lost"))
    assert window.size == 16


async def test_failures_that_say_nothing_about_load_change_nothing() -> None:
    window = Window(start=8)
    await answer(window, failed("invalid-reward"), 20)
    assert window.size == 8


async def test_it_never_closes_altogether() -> None:
    clock = FakeClock()
    window = Window(start=2, clock=clock)
    for _ in range(20):
        await answer(window, failed("overloaded"))
        clock.advance(COOLDOWN_SECONDS)
    assert window.size == 1


async def test_waiters_are_served_in_order_and_a_cancelled_one_loses_no_place() -> None:
    window = Window(start=1)
    await window.acquire()
    served: list[int] = []

    async def wait(number: int) -> None:
        await window.acquire()
        served.append(number)
        window.release()

    tasks = [asyncio.create_task(wait(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    window.release()
    await asyncio.wait(tasks)
    assert served == [0, 2, 3]
    assert window.in_use == 0


async def test_a_place_given_to_a_task_that_is_cancelled_at_the_same_moment_is_passed_on() -> None:
    window = Window(start=1)
    await window.acquire()
    first = asyncio.create_task(window.acquire())
    second = asyncio.create_task(window.acquire())
    await asyncio.sleep(0)
    window.release()
    first.cancel()
    await asyncio.wait([first, second], timeout=1)
    assert second.done()
    assert window.in_use == 1


@given(st.lists(st.sampled_from(["done", "overloaded", "invalid-reward"]), max_size=80), st.integers(1, 20))
@settings(max_examples=50, deadline=None)
def test_no_more_are_in_flight_than_the_window_ever_allowed(outcomes: list[str], start: int) -> None:
    async def scenario() -> None:
        window = Window(start=start)
        in_flight = most = 0
        largest = window.size

        async def one(kind: str) -> None:
            nonlocal in_flight, most, largest
            await window.acquire()
            in_flight += 1
            most = max(most, in_flight)
            await asyncio.sleep(0)
            in_flight -= 1
            window.note(DONE if kind == "done" else failed(kind))
            largest = max(largest, window.size)
            window.release()

        await asyncio.gather(*(one(kind) for kind in outcomes))
        assert most <= largest
        assert window.in_use == 0

    asyncio.run(scenario())
