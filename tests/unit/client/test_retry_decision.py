import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rollmill.errors
from rollmill.client.retry import RetryPolicy, retry_delay
from rollmill.errors import REFUSED, ConnectError, ConnectionLostError, OverloadedError, RollmillError, UpstreamError

CLASSES = [cls for _, cls in inspect.getmembers(rollmill.errors, inspect.isclass) if issubclass(cls, RollmillError)]
SAFE = (ConnectError, OverloadedError)
errors = st.builds(
    lambda cls, extensions: cls("x", **extensions),
    st.sampled_from(CLASSES),
    st.fixed_dictionaries(
        {}, optional={"retry_after": st.floats(-10, 1e6), "retryable": st.booleans(), "refused": st.just(True)}
    ),
)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 5000),
    base_seconds=st.floats(0.001, 10),
    cap_seconds=st.floats(0.001, 60),
    retry_after_cap_seconds=st.floats(0.001, 100),
)


def longest(low: float, high: float) -> float:
    return high


def shortest(low: float, high: float) -> float:
    return low


@given(errors, st.integers(1, 6000), st.booleans(), policies)
@settings(max_examples=200)
def test_delays_are_bounded_and_only_given_for_what_may_be_sent_again(
    error: RollmillError, attempt: int, has_key: bool, policy: RetryPolicy
) -> None:
    delay = retry_delay(error, attempt=attempt, has_key=has_key, policy=policy, uniform=longest)

    allowed = (
        isinstance(error, SAFE) or REFUSED in error.extensions or (has_key and isinstance(error, ConnectionLostError))
    )
    expected = allowed and attempt < policy.max_attempts and error.extensions.get("retryable") is not False
    assert (delay is not None) == expected
    if delay is not None:
        assert 0 <= delay <= policy.cap_seconds + policy.retry_after_cap_seconds


@given(errors, st.integers(1, 10), policies)
@settings(max_examples=100)
def test_a_key_never_forbids_a_retry(error: RollmillError, attempt: int, policy: RetryPolicy) -> None:
    without = retry_delay(error, attempt=attempt, has_key=False, policy=policy, uniform=shortest)
    if without is not None:
        assert retry_delay(error, attempt=attempt, has_key=True, policy=policy, uniform=shortest) == without


@given(st.floats(0, 50))
@settings(max_examples=50)
def test_the_servers_retry_after_is_never_undercut(seconds: float) -> None:
    error = OverloadedError("x", retry_after=seconds)
    delay = retry_delay(error, attempt=1, has_key=False, policy=RetryPolicy(), uniform=shortest)
    assert delay == seconds


def test_delays_double_up_to_the_cap() -> None:
    policy = RetryPolicy(max_attempts=9, base_seconds=1, cap_seconds=5)
    delays = [
        retry_delay(ConnectError("x"), attempt=n, has_key=False, policy=policy, uniform=longest) for n in range(1, 6)
    ]
    assert delays == [1, 2, 4, 5, 5]


@pytest.mark.parametrize("has_key", [True, False])
def test_a_failure_that_a_service_reports_about_itself_is_the_callers_to_judge(has_key: bool) -> None:
    error = UpstreamError("x", retryable=True)
    assert retry_delay(error, attempt=1, has_key=has_key, policy=RetryPolicy(), uniform=shortest) is None


def test_an_overload_further_on_is_left_to_the_caller() -> None:
    passed_on = OverloadedError("the model is busy", retry_after=1.0, boundary="model")
    assert retry_delay(passed_on, attempt=1, has_key=True, policy=RetryPolicy(), uniform=shortest) is None
    assert retry_delay(OverloadedError("busy"), attempt=1, has_key=False, policy=RetryPolicy(), uniform=longest)
