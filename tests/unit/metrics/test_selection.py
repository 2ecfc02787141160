import math
import operator
from collections.abc import Hashable, Mapping
from contextlib import suppress

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.errors import InputError
from rollmill.metrics.filter_grammar import MAX_DEPTH, MAX_LENGTH
from rollmill.metrics.selection import choose_tasks, column_names, parse_filter, task_frame

NAN = float("nan")

ROLLOUTS = pd.DataFrame(
    {
        "_ng_task_index": [1, 0, 0, 1, 2],
        "_ng_rollout_index": [1, 0, 1, 0, 0],
        "agent": pd.Categorical(["b", "a", "a", "b", None]),
        "reward": [1.0, 0.0, 1.0, 1.0, NAN],
        "output_tokens": [10.0, 20.0, 30.0, 40.0, NAN],
        "reward_components/format": [0.1, 0.2, 0.3, 0.4, 0.5],
        "answer": pd.Categorical(["x", "y", None, "x", "x"]),
        "truncated": [True, False, False, True, False],
    }
)


def chosen(text: str) -> list[int]:
    return choose_tasks(ROLLOUTS, parse_filter(text))


def fault(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        chosen(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("mean_reward < 0.9", [0]),
        ("0.1 < mean_reward < 0.9 and num_rollouts >= 2", [0]),
        ("0.9 > mean/reward > 0.1", [0]),
        ("mean_reward == 1 or task == 2", [1, 2]),
        ("task == 0 or task == 1 and mean_reward < 0.5", [0]),
        ("(task == 0 or task == 1) and mean_reward < 0.6", [0]),
        ("not task == 1", [0, 2]),
        ("not not task == 1", [1]),
        ("not (task == 0 or task == 2)", [1]),
        ("agent == 'a'", [0]),
        ('agent != "a"', [1]),
        ("'b' == agent", [1]),
        ("max_truncated == 1", [1]),
        ("mean_truncated < 0.5", [0, 2]),
        ("mean/reward_components/format >= .25", [0, 1, 2]),
        ("`mean_reward_components/format` > 0.25", [2]),
        ("std_output_tokens > 2e1", [1]),
        ("median_output_tokens == +25", [0, 1]),
        ("min_output_tokens < max_output_tokens", [0, 1]),
        ("pass_rate <= 0.5", [0]),
        ("task > -1", [0, 1, 2]),
        ("1 < 2", [0, 1, 2]),
        ("task<1 and(num_rollouts>1)", [0]),
    ],
)
def test_a_filter_chooses_tasks(text: str, tasks: list[int]) -> None:
    assert chosen(text) == tasks


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_every_comparison_with_a_missing_value_is_false(sign: str) -> None:
    assert 2 not in chosen(f"mean_reward {sign} 0.5")
    assert 2 not in chosen(f"0.5 {sign} mean_reward")
    assert chosen("agent == 'a' or agent != 'a'") == [0, 1]


def test_there_is_one_row_for_each_task() -> None:
    tasks = task_frame(ROLLOUTS)

    assert tasks["task"].tolist() == [0, 1, 2]
    assert tasks["agent"].tolist()[:2] == ["a", "b"]
    assert tasks["agent"].isna().tolist() == [False, False, True]
    assert tasks["num_rollouts"].tolist() == [2, 2, 1]
    assert tasks["pass_rate"].tolist()[:2] == [0.5, 1.0]
    assert math.isnan(tasks["pass_rate"][2])
    assert tasks[["mean_reward", "min_reward", "max_reward"]].iloc[0].tolist() == [0.5, 0.0, 1.0]
    assert tasks["std_reward"][0] == pytest.approx(math.sqrt(0.5))
    assert set(tasks.columns) == set(column_names(ROLLOUTS))
    assert not any("answer" in name for name in tasks.columns)


def test_the_pass_rate_is_of_the_score_that_is_asked_for() -> None:
    tasks = task_frame(ROLLOUTS, score_field="output_tokens", correct_at=20)
    unknown = task_frame(ROLLOUTS, score_field="nothing")

    assert tasks["pass_rate"].tolist()[:2] == [1.0, 0.5]
    assert unknown["pass_rate"].isna().all()


def test_only_what_a_filter_looks_at_is_computed() -> None:
    wanted = parse_filter("mean/reward > 0 and agent == 'a'")

    assert wanted.fields == {"mean_reward", "agent"}
    assert "mean_output_tokens" not in task_frame(ROLLOUTS, only=wanted.fields).columns


def test_a_run_without_rollouts_has_no_tasks_to_choose() -> None:
    empty = ROLLOUTS.iloc[:0]

    assert choose_tasks(empty, parse_filter("mean_reward > 0.5 or agent == 'a'")) == []
    assert task_frame(empty).columns.tolist() == task_frame(ROLLOUTS).columns.tolist()


def test_the_order_of_rollouts_does_not_matter() -> None:
    shuffled = ROLLOUTS.iloc[[3, 0, 4, 2, 1]]

    pd.testing.assert_frame_equal(task_frame(shuffled), task_frame(ROLLOUTS))


def test_the_mask_has_the_index_of_the_frame() -> None:
    tasks = task_frame(ROLLOUTS).set_index(pd.Index(["x", "y", "z"]))

    assert parse_filter("task >= 1").mask(tasks).to_dict() == {"x": False, "y": True, "z": True}


def test_a_wrong_place_is_shown_with_a_caret() -> None:
    error = fault("mean_reward = 1")

    assert str(error) == ("filter, character 13: `=` compares nothing; write `==`\n  mean_reward = 1\n              ^")
    assert error.extensions["position"] == 13


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 1, "expected a name"),
        ("   ", 4, "expected a name"),
        ("mean_reward", 12, "expected a comparison"),
        ("mean_reward <", 14, "expected a name"),
        ("(mean_reward < 1", 17, "expected `)`"),
        ("mean_reward < 1)", 16, "found `)`"),
        ("mean_reward < 1 task == 1", 17, "expected `and`, `or` or the end"),
        ("mean_reward < 1 and", 20, "found the end"),
        ("and task == 1", 1, "found `and`"),
        ("task == 1 && task == 2", 11, "write `and`"),
        ("!task == 1", 1, "write `and`, `or` and `not`"),
        ("mean_reward + 1 < 2", 13, "no arithmetic"),
        ("mean_reward -1 < 2", 13, "expected a comparison"),
        ("agent == 'a", 10, "no closing '"),
        ("task == 1; import os", 10, "means nothing here"),
        ("__import__('os') == 1", 11, "expected a comparison"),
        ("().__class__ == 1", 3, "means nothing here"),
        ("task == 1and task == 2", 9, "means nothing here"),
        ("task == 0x10", 9, "means nothing here"),
        ("task == 1.2.3", 9, "means nothing here"),
        ("agent == 1", 7, "cannot be compared"),
        ("mean_reward < 'x'", 13, "cannot be compared"),
        ("agent < 'x'", 7, "`==` and `!=` only"),
        ("0 < 1 < agent", 7, "cannot be compared"),
    ],
)
def test_what_is_no_filter_is_refused_with_its_position(text: str, position: int, words: str) -> None:
    error = fault(text)

    assert error.extensions["position"] == position
    assert words in error.detail
    caret = error.detail.splitlines()[2]
    assert caret.index("^") == 2 + position - 1


def test_an_unknown_name_is_told_with_the_names_that_there_are() -> None:
    assert "did you mean 'mean_reward'?" in str(fault("reward > 0.5"))
    assert "did you mean 'num_rollouts'?" in str(fault("num_rolouts > 0.5"))
    assert "did you mean" not in str(fault("zzzzzzz > 0.5"))
    assert str(fault("task > 0 and x > 1")).splitlines()[-1] == (
        "there is task, agent, num_rollouts, pass_rate; "
        "mean_, max_, min_, median_, std_ of reward, output_tokens, reward_components/format, truncated"
    )


def test_a_long_filter_shows_only_what_is_around_the_fault() -> None:
    error = fault("task == 1 or " * 50 + "task = 1" + " or task == 1" * 50)

    line, caret = error.detail.splitlines()[1:3]
    assert line[caret.index("^")] == "="
    assert len(line) < 140
    assert line.startswith("  …")
    assert line.endswith("…")


def test_control_characters_do_not_move_the_caret() -> None:
    line, caret = fault("task\t==\n\x1b").detail.splitlines()[1:3]

    assert line == "  task ==  "
    assert caret.index("^") == 2 + 8


def test_sizes_are_limited() -> None:
    assert "more than" in str(fault("a" * (MAX_LENGTH + 1)))
    assert chosen("(" * MAX_DEPTH + "task == 1" + ")" * MAX_DEPTH) == [1]
    assert "nested deeper" in str(fault("(" * (MAX_DEPTH + 1)))
    assert "nested deeper" in str(fault("not " * (MAX_DEPTH + 1)))
    assert chosen(" or ".join(["task == 1"] * 250)) == [1]


@settings(max_examples=200)
@given(st.text(st.sampled_from("()<>=!'\"`. 019ab_/-\n\x00é") | st.characters(), max_size=30))
def test_no_text_raises_anything_but_an_input_error(text: str) -> None:
    with suppress(InputError):
        chosen(text)


SIGNS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
COMPARISONS = st.tuples(
    st.sampled_from(["mean_reward", "num_rollouts", "task"]), st.sampled_from(list(SIGNS)), st.integers(0, 3)
)


@settings(max_examples=100)
@given(
    COMPARISONS, COMPARISONS, COMPARISONS, st.sampled_from(["and", "or"]), st.sampled_from(["and", "or"]), st.booleans()
)
def test_filters_mean_what_the_same_words_mean_in_python(
    one: tuple[str, str, int],
    two: tuple[str, str, int],
    three: tuple[str, str, int],
    first: str,
    second: str,
    negated: bool,
) -> None:
    words = "not " if negated else ""
    text = " ".join(
        [words + " ".join(map(str, one)), first, " ".join(map(str, two)), second, " ".join(map(str, three))]
    )
    tasks = task_frame(ROLLOUTS)

    def holds(row: Mapping[Hashable, float], comparison: tuple[str, str, int]) -> bool:
        name, sign, number = comparison
        return not math.isnan(row[name]) and bool(SIGNS[sign](row[name], number))

    def expected(row: Mapping[Hashable, float]) -> bool:
        a, b, c = holds(row, one) != negated, holds(row, two), holds(row, three)
        if first == "and" and second == "or":
            return (a and b) or c
        if first == "or" and second == "and":
            return a or (b and c)
        return (a and b and c) if first == "and" else (a or b or c)

    rows = tasks[["task", "num_rollouts", "mean_reward"]].to_dict("records")
    assert chosen(text) == [int(row["task"]) for row in rows if expected(row)]
