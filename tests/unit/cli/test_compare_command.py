import pytest

from rollmill.cli.compare import describe, verdict
from rollmill.contracts.json import JsonObject, JsonValue


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> JsonObject:
    made = {"value": value, "low": low, "high": high, "method": "analytic", "tasks_used": 4, "tasks_total": 4}
    return {name: number for name, number in made.items() if number is not None}


def result(
    value: float | None = 0.25, low: float | None = 0.1, high: float | None = 0.4, **more: JsonValue
) -> JsonObject:
    return {
        "tasks": {"both": 4, "only_a": 1, "only_b": 0},
        "mean_a": estimate(0.5, 0.25, 0.75),
        "mean_b": estimate(0.75),
        "difference": estimate(value, low, high),
        "p_value": 0.004,
        "mcnemar": {"only_a_solved": 0, "only_b_solved": 1, "p_value": 1.0},
        "wins": {"a": 0, "b": 1, "ties": 3},
        "moved_most": [
            {"task": 7, "mean_a": 0.0, "mean_b": 1.0, "difference": 1.0},
            {"task": 8, "mean_a": 0.5, "mean_b": 0.5, "difference": 0.0},
        ],
        **more,
    }


def test_a_comparison_is_a_table_with_intervals_and_a_verdict() -> None:
    lines = describe("solver", result()).splitlines()

    assert lines[0] == "solver: 4 tasks in both runs, 1 only in A, 0 only in B"
    assert [line.split() for line in lines[1:5]] == [
        ["A", "B"],
        ["mean", "0.5000", "[0.2500,", "0.7500]", "0.7500"],
        ["tasks", "won", "(3", "ties)", "0", "1"],
        ["solved", "by", "one", "only", "(McNemar", "p", "=", "1)", "0", "1"],
    ]
    assert lines[5] == "B - A = +0.2500 [+0.1000, +0.4000], p = 0.004: B is better"
    assert [line.split() for line in lines[6:]] == [
        ["moved", "most:"],
        ["task", "A", "B", "B", "-", "A"],
        ["7", "0", "1", "+1.0000"],
    ]


@pytest.mark.parametrize(
    ("low", "high", "p", "words"),
    [
        (0.1, 0.4, 0.004, ": B is better"),
        (-0.4, -0.1, 0.004, ": B is worse"),
        (0.001, 0.4, 0.06, ": B is better, though barely"),
        (-0.1, 0.4, 0.2, ": no difference is shown, the interval holds 0"),
        (None, None, 0.2, ": too few tasks to tell chance from a difference"),
    ],
)
def test_the_verdict_is_told_in_words(low: float | None, high: float | None, p: float, words: str) -> None:
    assert verdict(result(0.1, low, high, p_value=p)).endswith(words)


def test_no_common_task_is_no_verdict() -> None:
    nothing = result(None, None, None, mean_a=estimate(None), mean_b=estimate(None), moved_most=[], p_value=None)

    assert "nothing can be said" in describe("", nothing)
    assert describe("", nothing).startswith("-: 4 tasks")
