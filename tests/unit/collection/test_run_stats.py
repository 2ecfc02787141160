from datetime import UTC, datetime

from rollmill.collection.stats import RunStats
from rollmill.testing import FakeClock

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def stats(clock: FakeClock) -> RunStats:
    made = RunStats("r", created_at=NOW, clock=clock)
    made.expect({"a": 6, "b": 4})
    return made


def test_a_run_that_has_not_begun_has_no_rate_and_no_mean() -> None:
    status = stats(FakeClock()).status()

    assert (status.expected, status.completed, status.failed) == (10, 0, 0)
    assert (status.rate_per_second, status.eta_seconds, status.mean_reward) == (0.0, None, None)
    assert (status.run_id, status.created_at, status.state) == ("r", NOW, "running")


def test_numbers_add_up_over_agents() -> None:
    clock = FakeClock(100.0)
    made = stats(clock)
    made.start()
    for reward in (1.0, 0.5):
        made.completed("a", reward)
    made.completed("b", 0.0)
    made.failed("b")
    clock.advance(2.0)
    status = made.status(in_flight=3, concurrency=8)

    assert (status.completed, status.failed, status.in_flight, status.concurrency) == (3, 1, 3, 8)
    assert (status.rate_per_second, status.eta_seconds, status.mean_reward) == (2.0, 3.0, 0.5)
    agents = {name: (a.expected, a.completed, a.failed, a.mean_reward) for name, a in status.agents.items()}
    assert agents == {"a": (6, 2, 0, 0.75), "b": (4, 1, 1, 0.0)}


def test_what_an_earlier_session_settled_counts_but_not_in_the_rate() -> None:
    clock = FakeClock()
    made = stats(clock)
    for _ in range(4):
        made.completed("a", 1.0, earlier=True)
    made.failed("b", earlier=True)
    made.start()
    made.completed("a", 0.0)
    clock.advance(4.0)
    status = made.status()

    assert (status.completed, status.failed, status.mean_reward) == (5, 1, 0.8)
    assert (status.rate_per_second, status.eta_seconds) == (0.25, 16.0)


def test_a_run_that_ended_keeps_its_rate_and_has_no_eta() -> None:
    clock = FakeClock(-2.0)
    made = stats(clock)
    made.start()
    made.completed("a", 1.0)
    clock.advance(2.0)  # ends at 0.0, which is a time like any other
    made.stop("failed", "disk full")
    clock.advance(98.0)
    status = made.status()

    assert (status.rate_per_second, status.eta_seconds) == (0.5, None)
    assert (status.state, status.error) == ("failed", "disk full")


def test_rewards_whose_sum_no_float_holds_have_no_mean() -> None:
    made = stats(FakeClock())
    for _ in range(2):
        made.completed("a", 1.7e308)
    status = made.status()

    assert status.mean_reward is None
    assert status.agents["a"].mean_reward is None


def test_failure_types_are_counted_and_their_number_is_bounded() -> None:
    stats = RunStats("r")
    for number in range(500):
        stats.attempt_failed("agent", f"made-up-{number}")
    stats.attempt_failed("agent", "made-up-0")

    status = stats.status()
    assert status.failed_attempts == 501
    assert status.failures["agent/made-up-0"] == 2
    assert len(status.failures) == 101
