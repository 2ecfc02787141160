from rollmill.collection.outcomes import Completed, Failed
from rollmill.collection.window import COOLDOWN_SECONDS, Window
from rollmill.contracts.failures import Failure
from rollmill.testing import FakeClock

DONE = Completed({"reward": 1.0}, b"{}")


def failed(kind: str) -> Failed:
    return Failed(Failure(boundary="agent", type=kind, detail="", retryable=True), kind)


def answer(window: Window, outcome: Completed | Failed, times: int = 1) -> None:
    for _ in range(times):
        window.take()
        window.note(outcome)
        window.release()


def test_it_doubles_with_each_full_window_until_the_first_refusal() -> None:
    window = Window(start=4)
    answer(window, DONE, 4)
    assert window.size == 8
    answer(window, DONE, 8)
    assert window.size == 16


def test_after_a_refusal_it_halves_and_then_grows_by_about_one_per_full_window() -> None:
    window = Window(start=8)
    for _ in range(8):
        window.take()
    window.note(failed("overloaded"))
    for _ in range(8):
        window.release()
    assert window.size == 4
    answer(window, DONE, 5)
    assert window.size == 5


def test_a_burst_of_refusals_shrinks_it_once() -> None:
    clock = FakeClock()
    window = Window(start=64, clock=clock)
    for _ in range(64):
        window.take()
    for _ in range(10):
        window.note(failed("overloaded"))
    assert window.size == 32
    clock.advance(COOLDOWN_SECONDS)
    window.note(failed("connection-lost"))
    assert window.size == 16


def test_failures_that_say_nothing_about_load_change_nothing() -> None:
    window = Window(start=8)
    answer(window, failed("invalid-reward"), 20)
    assert window.size == 8


def test_it_never_closes_altogether() -> None:
    clock = FakeClock()
    window = Window(start=2, clock=clock)
    for _ in range(20):
        answer(window, failed("overloaded"))
        clock.advance(COOLDOWN_SECONDS)
    assert window.size == 1


def test_a_place_is_free_until_as_many_are_in_use_as_the_size_says() -> None:
    window = Window(start=2)
    window.take()
    assert window.free
    window.take()
    assert not window.free
    window.release()
    assert window.free
