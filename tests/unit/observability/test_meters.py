import math
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rollmill.observability.meters import MOST_SERIES, Counter, Gauge, Histogram, Meter, exposition


def samples(*meters: Meter) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return what Prometheus' own parser reads: values by name and label values."""
    families = text_string_to_metric_families(exposition(meters))
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


def test_a_counter_adds_up_by_labels() -> None:
    calls = Counter("calls_total", "Calls.", "route", "status")
    calls.add("/run", "200")
    calls.add("/run", "200", amount=2)
    calls.add("/run", "503")

    assert samples(calls) == {("calls_total", ("/run", "200")): 3, ("calls_total", ("/run", "503")): 1}


def test_numbers_without_labels_are_there_from_the_start() -> None:
    found = samples(Counter("a_total", "A."), Histogram("b_seconds", "B.", bounds=(1,)))

    assert found == {
        ("a_total", ()): 0,
        ("b_seconds_bucket", ("1",)): 0,
        ("b_seconds_bucket", ("+Inf",)): 0,
        ("b_seconds_sum", ()): 0,
        ("b_seconds_count", ()): 0,
    }


def test_the_buckets_of_a_histogram_hold_all_that_is_not_larger() -> None:
    rewards = Histogram("reward", "Rewards.", "agent", bounds=(0, 0.5, 1))
    for value in (-2.0, 0.0, 0.5, 0.75, 1.0, 3.0):
        rewards.observe(value, "a")

    found = samples(rewards)
    buckets = [found["reward_bucket", ("a", bound)] for bound in ("0", "0.5", "1", "+Inf")]
    assert buckets == [2, 3, 5, 6]
    assert (found["reward_count", ("a",)], found["reward_sum", ("a",)]) == (6, 3.25)


@pytest.mark.parametrize("value", [0.1, 1e-9, 1e30, -5, 2**60, math.inf, -math.inf])
def test_every_float_is_read_as_it_was(value: float) -> None:
    assert samples(Gauge("g", "G.", read=lambda: {(): value})) == {("g", ()): value}


def test_what_is_not_a_number_is_read_as_such() -> None:
    assert math.isnan(samples(Gauge("g", "G.", read=lambda: {(): math.nan}))["g", ()])


def test_labels_may_hold_any_text() -> None:
    hostile = 'a"} 1\nforged_total{x="\\'
    calls = Counter("calls_total", "Calls.", "name")
    calls.add(hostile)

    assert samples(calls) == {("calls_total", (hostile,)): 1}


def test_series_beyond_the_limit_are_counted_together() -> None:
    calls, seconds = Counter("c_total", "C.", "x", "y"), Histogram("s_seconds", "S.", "x", bounds=(1,))
    for number in range(MOST_SERIES + 50):
        calls.add(str(number), "y")
        seconds.observe(0.5, str(number))
    calls.add("0", "y")

    found = samples(calls, seconds)
    assert found["c_total", ("0", "y")] == 2
    assert found["c_total", ("other", "other")] == found["s_seconds_count", ("other",)] == 50
    assert len([name for name, _ in found if name == "c_total"]) == MOST_SERIES + 1


def test_counting_a_call_takes_microseconds() -> None:
    calls, seconds = Counter("c_total", "C.", "x"), Histogram("s_seconds", "S.", "x")
    began = time.process_time()
    for _ in range(20_000):
        calls.add("/run")
        seconds.observe(0.02, "/run")

    assert time.process_time() - began < 20_000 * 50e-6  # about 1 us here: the budget catches a slip of 50 times
