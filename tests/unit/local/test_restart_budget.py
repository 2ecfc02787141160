from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.local.restarts import RestartBudget


def test_a_service_that_keeps_crashing_is_restarted_five_times_ever_later() -> None:
    budget = RestartBudget()

    delays = [budget.after_crash(float(now)) for now in range(6)]

    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, None]


def test_crashes_far_apart_are_all_forgiven() -> None:
    budget = RestartBudget(most=1, window_seconds=60)

    assert [budget.after_crash(60.0 * n) for n in range(5)] == [0.25] * 5


@settings(max_examples=80)
@given(gaps=st.lists(st.floats(0, 100), max_size=30), most=st.integers(1, 6))
def test_there_are_never_more_restarts_in_a_window_than_allowed(gaps: list[float], most: int) -> None:
    budget = RestartBudget(most=most, window_seconds=60)
    now, restarts = 0.0, []
    for gap in gaps:
        now += gap
        delay = budget.after_crash(now)
        assert delay is None or 0.25 <= delay <= 0.25 * 2 ** (most - 1)
        if delay is not None:
            restarts.append(now)

    for start in restarts:
        assert sum(start <= moment < start + 60 for moment in restarts) <= most
