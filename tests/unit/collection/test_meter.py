from prometheus_client.parser import text_string_to_metric_families

from rollmill.collection.meter import RolloutMeter
from rollmill.collection.outcomes import Completed, Failed
from rollmill.contracts.failures import Failure
from rollmill.observability.meters import exposition


def completed(reward: float, *, seconds: float = 1.0, tokens: int = 0) -> Completed:
    usage = {"total_tokens": tokens}
    return Completed({"reward": reward, "response": {"usage": usage}, "_rollmill": {"seconds": seconds}}, b"{}")


def failed(kind: str, *, tokens: int = 0) -> Failed:
    failure = Failure(boundary="model", type=kind, detail="no", retryable=True)
    return Failed(failure, kind, unverified={"response": {"usage": {"total_tokens": tokens}}})


def told(meter: RolloutMeter) -> dict[tuple[str, tuple[str, ...]], float]:
    families = text_string_to_metric_families(exposition(meter.meters))
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_rollouts_are_counted_by_agent_and_outcome() -> None:
    meter = RolloutMeter()
    for reward in (0.0, 1.0, -0.5):
        meter.completed("a", completed(reward, seconds=2.0, tokens=10))
    meter.attempt_failed("a", failed("overloaded", tokens=3), given_up=False)
    meter.attempt_failed("a", failed("overloaded"), given_up=True)
    found = told(meter)

    assert found["rollmill_rollouts_total", ("a", "completed")] == 3
    assert found["rollmill_rollouts_total", ("a", "failed")] == 1
    assert found["rollmill_failed_attempts_total", ("model", "overloaded")] == 2
    assert found["rollmill_tokens_total", ("a",)] == 33
    assert (found["rollmill_reward_sum", ("a",)], found["rollmill_reward_count", ("a",)]) == (0.5, 3)
    assert found["rollmill_reward_bucket", ("a", "0")] == 2
    assert found["rollmill_rollout_seconds_sum", ("a",)] == 6.0


def test_agents_that_make_up_failures_do_not_fill_the_memory() -> None:
    meter = RolloutMeter()
    for number in range(5000):
        meter.attempt_failed("a", failed(f"made-up-{number}"), given_up=True)
    found = told(meter)

    assert len(found) < 1100
    assert found["rollmill_failed_attempts_total", ("other", "other")] == 4000
