"""What is made of a model's outputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.metrics import length_correlation, reward_metrics
from rollmill_services.resources.reward_model.scores import Head, reduced, sigmoid
from rollmill_services.resources.reward_model.settings import ScoreSettings


def head(*labels: str, **settings: object) -> Head:
    return Head(ScoreSettings.model_validate(settings), labels or ("LABEL_0",))


def test_scale_shift_and_clip_leave_the_raw_score_as_it_was() -> None:
    score = head(scale=2.0, shift=1.0, clip=(-3.0, 3.0)).score([4.0])

    assert (score.reward, score.raw, score.heads) == (3.0, 4.0, {})
    assert head(scale=2.0, shift=1.0).score([-4.0]).reward == -7.0


def test_one_of_several_outputs_or_their_weighted_sum_is_the_reward() -> None:
    outputs = [1.0, 10.0, 100.0]

    assert head("a", "b", "c", head=1).score(outputs).reward == 10.0
    weighted = head("a", "b", "c", weights=[0.5, 0.0, 0.25]).score(outputs)
    assert (weighted.reward, weighted.raw) == (25.5, 25.5)
    assert weighted.heads == {"a": 1.0, "b": 10.0, "c": 100.0}


def test_several_outputs_without_a_choice_are_an_error_that_names_them() -> None:
    with pytest.raises(ConfigError, match="helpful, harmless"):
        head("helpful", "harmless")


@given(st.floats(-1e6, 1e6))
def test_the_sigmoid_never_overflows(value: float) -> None:
    assert 0.0 <= sigmoid(value) <= 1.0
    assert sigmoid(value) + sigmoid(-value) == pytest.approx(1.0)


def test_an_ensemble_is_reduced_by_mean_worst_case_or_with_a_penalty_for_doubt() -> None:
    rewards = [1.0, 3.0, 5.0]

    assert reduced(rewards, "mean", 1.0) == 3.0
    assert reduced(rewards, "min", 1.0) == 1.0
    assert reduced(rewards, "mean_minus_k_std", 2.0) == pytest.approx(3.0 - 2.0 * (8 / 3) ** 0.5)


def test_the_five_metrics_have_the_names_of_nemo_rl() -> None:
    assert reward_metrics([1.0, 2.0, 6.0]) == {
        "reward_model_env/num_samples": 3,
        "reward_model_env/mean_reward": 3.0,
        "reward_model_env/std_reward": pytest.approx((14 / 3) ** 0.5),
        "reward_model_env/min_reward": 1.0,
        "reward_model_env/max_reward": 6.0,
    }


def test_one_sample_has_no_spread_and_none_has_only_a_number() -> None:
    assert reward_metrics([2.0])["reward_model_env/std_reward"] == 0.0
    assert reward_metrics([]) == {"reward_model_env/num_samples": 0}


def test_the_correlation_with_length_is_left_out_where_it_is_not_defined() -> None:
    assert length_correlation([1.0, 2.0, 3.0], [10, 20, 30]) == pytest.approx(1.0)
    assert length_correlation([1.0], [10]) is None
    assert length_correlation([1.0, 1.0], [10, 20]) is None
