import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.collection.fail_fast import FailFast, HopelessRunError
from rollmill.contracts.failures import Failure


def failure(kind: str = "connect-failed") -> Failure:
    return Failure(boundary="model", type=kind, detail="engine:8000: Connection refused", retryable=True)


def fail(fail_fast: FailFast, times: int, kind: str = "connect-failed", *, given_up: bool = False) -> None:
    for _ in range(times):
        fail_fast.attempt_failed(failure(kind), given_up=given_up)


def test_a_run_that_reaches_nobody_stops_with_the_reason_and_what_to_do() -> None:
    fail_fast = FailFast(count=20, share=None)
    fail(fail_fast, 19)
    with pytest.raises(HopelessRunError, match=r"reached the model: engine:8000: Connection refused.*--resume"):
        fail(fail_fast, 1)


def test_one_completed_rollout_shows_that_the_run_is_not_hopeless() -> None:
    fail_fast = FailFast(count=5, share=None)
    fail_fast.completed()
    fail(fail_fast, 100)


def test_another_failure_in_between_starts_the_count_again() -> None:
    fail_fast = FailFast(count=5, share=None)
    fail(fail_fast, 4)
    fail(fail_fast, 1, "upstream-timeout")
    fail(fail_fast, 4)
    with pytest.raises(HopelessRunError):
        fail(fail_fast, 1)


@pytest.mark.parametrize("kind", ["connect-failed", "unauthorized", "service-not-found"])
def test_each_plain_failure_counts(kind: str) -> None:
    with pytest.raises(HopelessRunError):
        fail(FailFast(count=3, share=None), 3, kind)


def test_a_count_of_nothing_turns_it_off() -> None:
    fail(FailFast(count=0, share=0.1), 1000, given_up=True)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 10), st.floats(0.1, 1.0))
@settings(max_examples=200)
def test_a_share_stops_the_run_at_the_first_failure_that_reaches_it(
    outcomes: list[bool], count: int, share: float
) -> None:
    fail_fast = FailFast(count=count, share=share)
    done = failed = 0
    for completed in outcomes:
        done, failed = done + completed, failed + (not completed)
        hopeless = not completed and done + failed >= count and failed >= share * (done + failed)
        if completed:
            fail_fast.completed()
        elif hopeless:
            with pytest.raises(HopelessRunError, match=f"{failed} of {done + failed} rollouts failed"):
                fail(fail_fast, 1, "invalid-reward", given_up=True)
            return
        else:
            fail(fail_fast, 1, "invalid-reward", given_up=True)
