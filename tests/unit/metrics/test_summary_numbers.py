import itertools
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas import DataFrame

from rollmill.contracts.json import JsonObject
from rollmill.errors import InputError
from rollmill.metrics.compare import compare_runs, exact_sign_p
from rollmill.metrics.estimators import best_at_k, pass_at_k, pass_hat_k
from rollmill.metrics.majority import EXACT_ROLLOUTS, majority_at_k
from rollmill.metrics.summary import default_ks, summarize
from rollmill.metrics.votes import distinct_rows

tasks_of_scores = st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=1, max_size=8)
votes = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=7)


def frame(tasks: Sequence[Sequence[float]], **columns: Sequence[object]) -> DataFrame:
    keys = [(task, rollout) for task, scores in enumerate(tasks) for rollout in range(len(scores))]
    return DataFrame(
        {
            "_ng_task_index": [task for task, _ in keys],
            "_ng_rollout_index": [rollout for _, rollout in keys],
            "reward": [float(score) for scores in tasks for score in scores],
            **columns,
        }
    )


def vote(answers: Sequence[object], correct: Sequence[float]) -> float:
    """The obvious way: count, find the most frequent answers, average how correct they are."""
    given = [answer for answer in answers if answer is not None]
    if not given:
        return 0.0
    most = max(given.count(answer) for answer in given)
    winners = sorted({str(answer) for answer in given if given.count(answer) == most})
    means = []
    for winner in winners:
        means.append(correct_of(winner, correct_by=dict(zip(map(str, answers), correct, strict=True))))
    return sum(means) / len(means)


def correct_of(answer: str, *, correct_by: dict[str, float]) -> float:
    return correct_by[answer]


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
@settings(max_examples=100)
def test_the_estimators_are_what_enumerating_every_draw_gives(outcomes: list[bool], k: int) -> None:
    n, c = len(outcomes), sum(outcomes)
    if k > n:
        with pytest.raises(InputError):
            pass_at_k(n, c, k)
        return
    draws = list(itertools.combinations(outcomes, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=7), st.data())
@settings(max_examples=100)
def test_best_of_k_is_the_mean_maximum_of_every_draw(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    draws = list(itertools.combinations(scores, k))
    assert best_at_k(scores, k) == pytest.approx(sum(map(max, draws)) / len(draws), abs=1e-9)


@given(votes, st.data())
@settings(max_examples=150)
def test_majority_is_what_enumerating_every_draw_gives(
    cast: list[tuple[str | None, bool]], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(cast)))
    answers, correct = [answer for answer, _ in cast], [right for _, right in cast]
    share: dict[str | None, float] = {
        a: sum(r for b, r in cast if b == a) / answers.count(a) for a in set(answers) if a is not None
    }
    shares = [share.get(answer, 0.0) for answer in answers]
    draws = list(itertools.combinations(range(len(cast)), k))
    slow = sum(vote([answers[i] for i in draw], [shares[i] for i in draw]) for draw in draws) / len(draws)

    assert majority_at_k(answers, correct, k) == pytest.approx(slow)
    shuffled = data.draw(st.permutations(cast))
    assert majority_at_k([a for a, _ in shuffled], [r for _, r in shuffled], k) == pytest.approx(slow)


@given(st.lists(votes, min_size=1, max_size=6), st.data())
@settings(max_examples=60)
def test_the_vote_of_many_tasks_is_the_mean_of_their_votes_in_any_order(
    cast: list[list[tuple[str | None, bool]]], data: st.DataObject
) -> None:
    tasks = [data.draw(st.permutations(task)) for task in cast]
    rows = frame(
        [[float(right) for _, right in task] for task in tasks],
        answer=[answer for task in tasks for answer, _ in task],
    )
    estimates = summarize(rows, resamples=5)["estimates"]

    if all(answer is None for task in cast for answer, _ in task):
        assert "majority@1" not in estimates
        return
    for k in default_ks(max(map(len, cast))):
        allowed = [task for task in cast if len(task) >= k]
        expected = [majority_at_k([a for a, _ in task], [right for _, right in task], k) for task in allowed]
        assert estimates[f"majority@{k}"]["value"] == pytest.approx(sum(expected) / len(expected))
        assert estimates[f"majority@{k}"]["tasks_used"] == len(allowed)


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), max_size=4), st.integers(0, 9), st.data())
@settings(max_examples=60)
def test_majority_is_what_enumerating_the_votes_for_each_answer_gives(
    given_answers: list[tuple[int, float]], silent: int, data: st.DataObject
) -> None:
    sizes = [size for size, _ in given_answers]
    rights = [round(share * size) for size, share in given_answers]
    n = sum(sizes) + silent
    k = data.draw(st.integers(1, max(1, n)))
    slow = 0.0
    for counts in itertools.product(*(range(size + 1) for size in sizes)):
        most = max(counts, default=0)
        if most and k - silent <= sum(counts) <= k:
            ways = math.prod(map(math.comb, sizes, counts)) * math.comb(silent, k - sum(counts))
            tied = [right / size for count, size, right in zip(counts, sizes, rights, strict=True) if count == most]
            slow += ways / math.comb(n, k) * sum(tied) / len(tied)

    answers = [name for name, size in enumerate(sizes) for _ in range(size)] + [None] * (n - sum(sizes))
    correct = [place < right for size, right in zip(sizes, rights, strict=True) for place in range(size)]
    if n:
        assert majority_at_k(answers, [*correct, *[True] * silent], k) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("k", [2, 7, 32, 63])
def test_a_large_vote_is_exact(k: int) -> None:
    """Each of 64 rollouts votes for itself: whoever is drawn, all tie. Two answers: it is a matter of counting."""
    right = [number < 9 for number in range(64)]
    assert majority_at_k(range(64), right, k) == pytest.approx(9 / 64, abs=1e-12)

    votes_of_first = [math.comb(24, first) * math.comb(40, k - first) for first in range(k + 1)]
    wins = sum(ways * (1.0 if 2 * first > k else 0.5 * (2 * first == k)) for first, ways in enumerate(votes_of_first))
    answers = ["a"] * 24 + ["b"] * 40
    chance = majority_at_k(answers, [answer == "a" for answer in answers], k)
    assert chance == pytest.approx(wins / math.comb(64, k), abs=1e-12)


def test_a_vote_of_more_rollouts_than_are_counted_is_sampled_close_to_the_truth_and_the_same_each_time() -> None:
    answers = [f"wrong {i}" for i in range(EXACT_ROLLOUTS)] + ["right"] * 150
    correct = [answer == "right" for answer in answers]
    value = majority_at_k(answers, correct, 8, seed=1)

    rng = random.Random(5)
    draws = [rng.sample(answers, 8).count("right") for _ in range(20_000)]
    truth = sum((count > 1) + (count == 1) / 8 for count in draws) / len(draws)
    assert value == pytest.approx(truth, abs=0.04)
    assert majority_at_k(answers, correct, 8, seed=1) == value


@pytest.mark.parametrize("n", [8, EXACT_ROLLOUTS + 1])
def test_without_any_answer_no_vote_is_right(n: int) -> None:
    assert [majority_at_k([None] * n, [True] * n, k) for k in (1, 5, n)] == [0.0, 0.0, 0.0]


@given(st.lists(st.lists(st.integers(0, 3), min_size=5, max_size=5), max_size=30), st.integers(3, 200))
@settings(max_examples=60)
def test_equal_rows_are_found(rows: list[list[int]], most: int) -> None:
    table = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
    first, of_row = distinct_rows(table, most)

    assert (table[first][of_row] == table).all()
    assert len(first) == len({tuple(row) for row in rows})


@given(tasks_of_scores, st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_a_summary_is_the_mean_over_tasks_that_allow_it_in_any_order(
    tasks: list[list[float]], rng: random.Random
) -> None:
    summary = summarize(frame(tasks), resamples=20)

    for k in default_ks(max(map(len, tasks))):
        allowed = [scores for scores in tasks if len(scores) >= k]
        estimate = summary["estimates"][f"pass@{k}"]
        expected = [pass_at_k(len(scores), int(sum(scores)), k) for scores in allowed]
        assert estimate["value"] == pytest.approx(sum(expected) / len(expected))
        assert (estimate["tasks_used"], estimate["tasks_total"]) == (len(allowed), len(tasks))
        assert estimate["rollouts"] == sum(map(len, allowed))
        best = [best_at_k(scores, k) for scores in allowed]
        assert summary["estimates"][f"best@{k}"]["value"] == pytest.approx(sum(best) / len(best))
    rows = frame(tasks)
    order = list(range(len(rows)))
    rng.shuffle(order)
    assert summarize(rows.iloc[order], resamples=20) == summary


def test_a_trainer_sees_which_groups_give_a_gradient() -> None:
    summary = summarize(frame([[0, 0], [1, 1], [0, 1, 1, 1], [1]]), resamples=50)

    assert summary["estimates"]["zero_variance_share"]["value"] == pytest.approx(2 / 3)
    assert summary["estimates"]["zero_variance_share"]["tasks_used"] == 3
    assert summary["estimates"]["effective_batch_share"]["value"] == pytest.approx(4 / 9)
    assert {name: summary["solve_rate"][name] for name in ("none", "some", "all")} == {"none": 1, "some": 1, "all": 2}
    assert summary["solve_rate"]["bins"] == [0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    assert [task["task"] for task in summary["hardest"]][:2] == [0, 2]
    assert summary["hardest"][1]["rollouts"] == ["2:0", "2:1", "2:2", "2:3"]


def test_answers_truncation_and_tool_errors_are_counted_per_rollout() -> None:
    rows = frame(
        [[1, 0], [1, 0]],
        answer=["4", None, "4", "5"],
        truncated=[False, True, False, False],
        tool_errors=[0.0, 2.0, 0.0, 0.0],
        output_tokens=[10.0, 40.0, 20.0, 30.0],
    )
    summary = summarize(rows, resamples=50)
    estimates = summary["estimates"]

    assert estimates["no_answer"]["value"] == 0.25
    assert estimates["truncation_rate"]["value"] == 0.25
    assert estimates["tool_errors_per_rollout"]["value"] == 0.5
    assert estimates["majority@2"]["value"] == pytest.approx((1.0 + 0.5) / 2)
    assert summary["length"]["mean_output_tokens_right"] == 15
    assert summary["length"]["mean_output_tokens_wrong"] == 35
    assert summary["length"]["spearman"] == pytest.approx(-0.8944, abs=1e-4)
    assert summary["percentiles"]["output_tokens"]["p50"] == 25


@pytest.mark.parametrize("tasks", [[], [[1.0]], [[0.5]], [[0.0, 0.0]]])
def test_few_rollouts_give_a_defined_result(tasks: list[list[float]]) -> None:
    summary = summarize(frame(tasks), resamples=10)
    estimate: JsonObject = summary["estimates"]["mean_reward"]

    assert summary["rollouts"] == sum(map(len, tasks))
    assert ("value" in estimate) == bool(tasks)
    assert "standard_error" not in estimate


def test_rollouts_without_a_score_are_counted_and_in_no_estimate() -> None:
    summary = summarize(frame([[1.0, math.nan], [math.inf], [0.0, 1.0]]), resamples=10)

    assert (summary["tasks"], summary["rollouts"], summary["unscored"]) == (3, 5, 2)
    for name in ("mean_reward", "pass@1", "pass@2", "effective_batch_share"):
        estimate = summary["estimates"][name]
        assert (estimate["tasks_used"], estimate["tasks_total"]) == (1 if name == "pass@2" else 2, 3)
    assert summary["estimates"]["mean_reward"]["value"] == 0.75
    assert summary["estimates"]["mean_reward"]["rollouts"] == 3
    assert [task["task"] for task in summary["hardest"]] == [2, 0]


def test_a_comparison_counts_rollouts_without_a_score() -> None:
    found = compare_runs(frame([[1.0, math.nan], [0.0], [math.nan]]), frame([[1.0], [1.0], [1.0]]))

    assert found["unscored"] == {"a": 2, "b": 0}
    assert found["tasks"] == {"both": 2, "only_a": 0, "only_b": 1}
    assert found["mean_a"]["rollouts"] == 2


def test_numbers_of_one_rollout_have_the_interval_of_a_mean_and_others_a_bootstrap() -> None:
    estimates = summarize(frame([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], answer=list("abaacc")), resamples=10)["estimates"]
    analytic = {name for name, estimate in estimates.items() if estimate["method"] == "analytic"}

    assert {"mean_reward", "pass@1", "pass^1", "best@1", "majority@1"} <= analytic
    assert not {"pass@2", "pass^2", "best@2", "majority@2", "zero_variance_share"} & analytic
    alike = [estimates[name] for name in ("mean_reward", "pass@1", "pass^1", "best@1", "majority@1")]
    assert all(estimate == pytest.approx(alike[0]) for estimate in alike)


@pytest.mark.parametrize("kind", ["graded", "uneven"])
def test_no_number_of_a_summary_is_far_from_its_interval(kind: str) -> None:
    rng = np.random.default_rng(7)
    tasks = [rng.random(8 if kind == "graded" else 1 + at % 7).round(1).tolist() for at in range(30)]
    for name, estimate in summarize(frame(tasks), resamples=100)["estimates"].items():
        assert estimate["low"] <= estimate["value"] <= estimate["high"], name


def test_two_runs_are_compared_over_the_tasks_that_both_have() -> None:
    a = frame([[0, 0], [1, 1], [0, 1], [1, 1]])
    b = frame([[1, 1], [1, 1], [0, 0], [1, 1], [1]])
    found = compare_runs(a, b)

    assert found["tasks"] == {"both": 4, "only_a": 0, "only_b": 1}
    assert found["mean_a"]["value"] == 0.625
    assert found["mean_b"]["value"] == 0.75
    assert found["difference"]["value"] == 0.125
    assert found["difference"]["low"] < 0 < found["difference"]["high"]
    assert found["wins"] == {"a": 1, "b": 1, "ties": 2}
    assert found["mcnemar"] == {"only_a_solved": 0, "only_b_solved": 1, "p_value": 1.0}
    assert [task["task"] for task in found["moved_most"]] == [0, 2]


def test_a_run_compared_with_itself_shows_nothing() -> None:
    run = frame([[0, 1], [1, 1], [0, 0]])
    found = compare_runs(run, run)

    assert found["difference"]["value"] == 0
    assert found["p_value"] == 1.0
    assert found["moved_most"] == []


def test_a_clear_difference_is_found() -> None:
    a, b = frame([[0, 0, 0, 1]] * 40), frame([[1, 1, 0, 1], [0, 1, 1, 0]] * 20)
    found = compare_runs(a, b)

    assert found["p_value"] < 0.01
    assert found["mcnemar"]["p_value"] < 0.01
    assert found["difference"]["low"] > 0


@given(st.integers(0, 12), st.integers(0, 12))
@settings(max_examples=60)
def test_the_sign_test_adds_up_the_binomial_tail(one: int, other: int) -> None:
    total = one + other
    seen = abs(one - total / 2)
    chances = [math.comb(total, i) / 2**total for i in range(total + 1) if abs(i - total / 2) >= seen - 1e-9]

    assert exact_sign_p(one, other) == pytest.approx(min(1.0, sum(chances)))
