import math

import pytest

from rollmill.contracts.rollouts import Verdict
from rollmill.errors import ConfigError
from rollmill.grading.objectives import MultiRewardSettings, Objective, Objectives, group_normalised

PARTS: dict[str, Objective | float] = {
    "correct": 1.0,
    "short": Objective(weight=0.5, lowest=-100, highest=0),
    "rude": -0.25,
}
SCORES = {"correct": 1.0, "short": -50.0, "rude": 1.0}


def test_the_reward_is_the_weighted_sum_and_the_scores_are_its_components() -> None:
    verdict = Objectives(PARTS).verdict(SCORES, {"words": 50})

    assert verdict == Verdict(1.0 - 25.0 - 0.25, {"words": 50}, SCORES)


def test_normalised_each_score_is_scaled_from_its_range_and_the_weights_add_up_to_1() -> None:
    objectives = Objectives(PARTS, MultiRewardSettings(normalise_rewards=True))

    assert objectives.verdict(SCORES).reward == (1.0 + 0.5 * 0.5 - 0.25) / 1.75
    assert objectives.verdict(SCORES).components == SCORES
    beyond = {"correct": 7.0, "short": -1e9, "rude": -3.0}
    assert objectives.verdict(beyond).reward == 1.0 / 1.75


@pytest.mark.parametrize("count", [1, 3, 6, 7, 10, 49])
def test_the_best_scores_give_exactly_1_whatever_the_weights(count: int) -> None:
    weights: dict[str, Objective | float] = {str(n): 0.1 * (n + 1) for n in range(count)}

    reward = (
        Objectives(weights, MultiRewardSettings(normalise_rewards=True)).verdict(dict.fromkeys(weights, 1.0)).reward
    )

    assert reward == 1.0


def test_settings_change_weights_and_leave_an_objective_out_of_the_reward_but_not_of_the_components() -> None:
    objectives = Objectives(PARTS, MultiRewardSettings(reward_weights={"short": 0.0, "correct": 2.0}))

    verdict = objectives.verdict(SCORES)

    assert objectives.weights == {"correct": 2.0, "short": 0.0, "rude": -0.25}
    assert verdict.reward == 1.75
    assert verdict.components["short"] == -50.0


def test_a_weight_for_an_unknown_objective_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no objective corect; there are: correct, short, rude"):
        Objectives(PARTS, MultiRewardSettings(reward_weights={"corect": 1.0}))


def test_a_reward_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="other than 0"):
        Objectives({"a": 1.0}, MultiRewardSettings(reward_weights={"a": 0.0}))


@pytest.mark.parametrize("scores", [{"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {}])
def test_scores_of_other_objectives_are_an_error(scores: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"the objectives are \['a', 'b'\]"):
        Objectives({"a": 1.0, "b": 1.0}).verdict(scores)


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="must not be empty"):
        Objective(lowest=1.0, highest=1.0)


def test_normalised_over_a_group_no_objective_drowns_another() -> None:
    group = [{"correct": 1.0, "length": 900.0}, {"correct": 0.0, "length": 100.0}, {"correct": 1.0, "length": 500.0}]

    totals = group_normalised(group, {"correct": 1.0, "length": -0.5})

    deviation = math.sqrt(2) / 3  # of 1, 0, 1; their mean is 2/3
    spread = 400 * math.sqrt(2 / 3)
    expected = [
        (1 / 3) / deviation - 0.5 * 400 / spread,
        (-2 / 3) / deviation + 0.5 * 400 / spread,
        (1 / 3) / deviation,
    ]
    assert totals == pytest.approx(expected)
    assert sum(totals) == pytest.approx(0.0)


def test_an_objective_in_which_all_are_equal_adds_nothing() -> None:
    group = [{"correct": 1.0, "format": 0.3}, {"correct": 0.0, "format": 0.3}]

    assert group_normalised(group, {"correct": 1.0, "format": 100.0}) == [1.0, -1.0]
    assert group_normalised(group[:1], {"correct": 1.0}) == [0.0]
    assert group_normalised([], {"correct": 1.0}) == []


def test_an_objective_that_a_rollout_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="format"):
        group_normalised([{"format": 1.0}, {}], {"format": 1.0})
