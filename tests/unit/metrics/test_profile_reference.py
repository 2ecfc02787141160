"""The profile against a second one, written with the `statistics` module straight from the definition."""

import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.metrics import aggregate_metrics, build_profile

# Sums of a few such values and their squares stay within the range of doubles; beyond it nothing is defined.
numbers = (
    st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(-1e3, 1e3)
    | st.floats(-1e140, 1e140)
    | st.sampled_from([0.0, 1.0, -0.0, 1e-300, 0.1])
)
usage_fields = st.dictionaries(st.sampled_from(["input_tokens", "score"]), numbers | st.none(), max_size=2)
row_fields = st.fixed_dictionaries(
    {
        "agent_ref": st.sampled_from([{"name": "a"}, {"name": "b"}]),
        "response": usage_fields.map(lambda u: {"usage": u}),
    },
    optional={"reward": numbers, "score": numbers, "text": st.just("x")},
)


@st.composite
def runs(draw: st.DrawFn) -> list[Row]:
    repeats = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))  # uneven, often one
    keys = [(task * 3, index) for task, count in enumerate(repeats) for index in range(count)]
    return [{"_ng_task_index": task, "_ng_rollout_index": index, **draw(row_fields)} for task, index in keys]


def reference_fields(row: Row) -> dict[str, float]:
    usage = {name: value for name, value in row["response"]["usage"].items() if value is not None}
    merged = {name: row[name] for name in ("reward", "score") if name in row} | usage
    return {name: float(value) for name, value in merged.items()}


def exact_mean(values: Sequence[float]) -> float:
    return float(sum(map(Fraction, values)) / len(values))


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": exact_mean,
    "max": max,
    "min": min,
    "median": statistics.median,
}


def reference(rows: list[Row]) -> dict[str, float]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in reference_fields(row).items():
            columns.setdefault(name, []).append(value)
    found = {f"{stat}/{name}": of(column) for stat, of in STATISTICS.items() for name, column in columns.items()}
    stds = {name: statistics.stdev(column) for name, column in columns.items() if len(column) > 1}
    if not stds:  # all undefined: fields with no missing value get 0
        stds = {name: 0.0 for name, column in columns.items() if len(column) == len(rows)}
    return found | {f"std/{name}": value for name, value in stds.items()}


def statistics_of(entry: JsonObject) -> dict[str, float]:
    return {name: value for name, value in entry.items() if "/" in name}


def assert_same(entry: JsonObject, rows: list[Row]) -> None:
    expected, found = reference(rows), statistics_of(entry)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        field = name.partition("/")[2]
        scale = max(abs(reference_fields(row).get(field, 0.0)) for row in rows)
        # The square of a difference below 1e-160 is below the range of doubles, so such a std is 0.
        assert found[name] == pytest.approx(value, rel=1e-12, abs=max(1e-14 * scale, 1e-150)), name


def grouped(rows: list[Row], key: Callable[[Row], str | int]) -> list[list[Row]]:
    groups: dict[str | int, list[Row]] = {}
    for row in sorted(rows, key=key):
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


@settings(max_examples=80)
@given(runs())
def test_every_statistic_is_what_its_definition_says(rows: list[Row]) -> None:
    profile = build_profile(rows, rows)

    tasks = grouped(rows, lambda row: row["_ng_task_index"])
    agents = grouped(rows, lambda row: row["agent_ref"]["name"])
    assert len(profile.tasks) == len(tasks)
    assert len(profile.agents) == len(agents)
    for task_row, task in zip(profile.tasks, tasks, strict=True):
        assert task_row["num_rollouts"] == len(task)
        assert_same(task_row, task)
    for agent_row, agent in zip(profile.agents, agents, strict=True):
        assert_same(agent_row, agent)
    assert_same(aggregate_metrics(rows)["agent_metrics"], rows)


@settings(max_examples=40)
@given(runs(), st.integers(0, 2**32))
def test_no_number_depends_on_the_order_of_rollouts(rows: list[Row], seed: int) -> None:
    shuffled = Random(seed).sample(rows, len(rows))

    first, second = build_profile(rows, rows), build_profile(rows, shuffled)

    assert first.tasks == second.tasks
    assert first.agents == second.agents
    assert first.completion == second.completion
    assert aggregate_metrics(rows) == aggregate_metrics(shuffled)


@settings(max_examples=30)
@given(runs())
def test_aggregate_metrics_has_the_numbers_of_the_profile(rows: list[Row]) -> None:
    tasks = build_profile(rows, rows).tasks
    aggregated = aggregate_metrics(rows)["group_level_metrics"]

    assert [{**task, "sample": None} for task in tasks] == [{**entry, "sample": None} for entry in aggregated]
