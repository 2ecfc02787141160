import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonValue
from rollmill.report.numbers import basis, bounds, compact, count, interval, is_finite, number, percent, plural
from rollmill.report.scales import Scale, count_ticks, nice_ticks


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0.000"),
        (0.5, "0.500"),
        (-0.25, "-0.250"),
        (1, "1.000"),
        (0.0001, "0.0001"),
        (12.345, "12.3"),
        (12, "12"),
        (1234.4, "1,234"),
        (123456789.0, "1.23e+08"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (True, "–"),
        ("1", "–"),
    ],
)
def test_statistics_are_written_with_the_digits_that_matter(value: JsonValue, words: str) -> None:
    assert number(value) == words


def test_shares_are_never_rounded_to_nothing_or_to_everything() -> None:
    assert [percent(value) for value in (0, 0.0001, 0.5, 0.9999, 1, None)] == [
        "0.0 %",
        "<0.1 %",
        "50.0 %",
        ">99.9 %",
        "100.0 %",
        "–",
    ]


def test_amounts_are_written_for_people() -> None:
    assert (count(1234), count(None)) == ("1,234", "–")
    assert (plural(1, "task"), plural(1200, "task")) == ("1 task", "1,200 tasks")
    assert [compact(value) for value in (0, 0.25, 999, 1500, 2e6, 3e9, -1500)] == [
        "0",
        "0.25",
        "999",
        "1.5k",
        "2M",
        "3G",
        "-1.5k",
    ]
    assert not is_finite(10**400 > 1)


def test_an_interval_is_written_without_a_dash_beside_a_minus() -> None:
    assert interval({"low": 0.2, "high": 0.4}) == "0.200–0.400"
    assert interval({"low": -0.2, "high": 0.4}) == "-0.200 to 0.400"
    assert interval({"low": 0.2, "high": 0.4}, share=True) == "20.0–40.0 %"
    assert bounds({"low": 0.2, "high": 0.4}) == ("0.200", "0.400")
    assert interval({"low": 0.2}) == ""
    assert bounds({}) is None


def test_an_estimate_over_fewer_tasks_says_so() -> None:
    assert basis({"tasks_used": 3, "tasks_total": 12}) == "over 3 of 12 tasks"
    assert basis({"tasks_used": 12, "tasks_total": 12}) == ""
    assert basis({}) == ""


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 7, [0.0, 2.0, 4.0, 6.0, 8.0]),
        (-3, 6, [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0]),
        (5, 5, [4.5, 4.75, 5.0, 5.25, 5.5]),
        (0, 0, [-0.5, -0.25, 0.0, 0.25, 0.5]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(expected)


@settings(max_examples=300)
@example(0.0, 5e-324, 3)
@example(0.0, 3e-290, 30)
@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(3, 30),
)
def test_ticks_span_the_values_and_are_few(one: float, two: float, most: int) -> None:
    low, high = max(min(one, two), -1e300), min(max(one, two), 1e300)
    ticks = nice_ticks(low, high, most)

    assert 2 <= len(ticks) <= most
    assert ticks == sorted(set(ticks))
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack


def test_counts_have_whole_ticks() -> None:
    assert count_ticks(0) == [0, 1]
    assert count_ticks(3) == [0, 1, 2, 3]
    assert all(tick == int(tick) for high in [*range(1, 300), *range(300, 20_000, 77)] for tick in count_ticks(high))
    assert all(count_ticks(high)[-1] >= high for high in [*range(1, 300), *range(300, 20_000, 77)])


def test_a_scale_keeps_what_is_outside_at_its_ends() -> None:
    scale = Scale(0, 10, 100, 0)

    assert [scale(value) for value in (-5, 0, 2.5, 10, 99)] == [100, 100, 75, 0, 0]
