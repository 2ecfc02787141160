"""The environment that a trainer has in its own process."""

import math
import threading
from collections.abc import Iterator

import pytest

from rollmill.contracts.json import JsonObject
from rollmill.errors import ConfigError, NotReadyError, UpstreamError
from rollmill_services.resources.reward_model.trainer import RewardModelEnvironment


def logs(*answers: str) -> list[list[JsonObject]]:
    question = "What is the capital of France?"
    return [[{"role": "user", "content": question}, {"role": "assistant", "content": answer}] for answer in answers]


@pytest.fixture
def environment(checkpoint: str) -> Iterator[RewardModelEnvironment]:
    with RewardModelEnvironment({"model_name": checkpoint, "device": "cpu", "batch_size": 32}) as environment:
        yield environment


def test_a_step_gives_the_rewards_of_a_batch_of_any_size(environment: RewardModelEnvironment) -> None:
    import torch

    result = environment.step(logs(*(f"answer {n}" * (n % 9) for n in range(33))), [{}] * 33)
    single = environment.step(logs("answer 4" * 4), [{}])

    assert (result.rewards.shape, result.rewards.dtype) == ((33,), torch.float32)
    assert result.rewards[4].item() == pytest.approx(single.rewards[0].item(), abs=1e-5)
    assert result.terminateds.all()
    assert result.terminateds.dtype == torch.bool
    assert result.metadata == result.next_stop_strings == [None] * 33
    assert result.answers[1] == "answer 1"
    assert result.observations[4]["content"] == f"Environment: {result.rewards[4].item():g}"


def test_preprocessing_pads_to_the_longest_and_tells_the_lengths(environment: RewardModelEnvironment) -> None:
    data = environment.preprocess_data(logs("a", "abcd"))

    assert data["input_ids"].shape == (2, int(data["input_lengths"].max()))
    assert int(data["input_lengths"][1] - data["input_lengths"][0]) == 3
    assert data["input_ids"][0, int(data["input_lengths"][0]) :].tolist() == [0, 0, 0]


def test_a_conversation_that_cannot_be_scored_raises_and_names_it(environment: RewardModelEnvironment) -> None:
    with pytest.raises(UpstreamError, match="1 of 2 conversations were not scored") as caught:
        environment.step(logs("fine", "x" * 3000), [{}, {}])

    assert [error and error["type"] for error in caught.value.extensions["errors"]] == [None, "reward_model_too_long"]


def test_a_failure_may_be_a_reward_that_is_not_a_number_and_is_never_zero(checkpoint: str) -> None:
    with RewardModelEnvironment({"model_name": checkpoint, "device": "cpu"}, on_failure="nan") as environment:
        result = environment.step(logs("fine", "x" * 3000))
        _, metrics = environment.global_post_process_and_metrics({"message_log": [1, 2], "rewards": result.rewards})

    assert [math.isnan(reward) for reward in result.rewards.tolist()] == [False, True]
    assert (result.metadata[1] or {})["reward_model_failed"]["type"] == "reward_model_too_long"
    assert metrics["reward_model_env/num_samples"] == 2
    assert metrics["reward_model_env/mean_reward"] == pytest.approx(result.rewards[0].item())


def test_metrics_are_of_the_rewards_under_either_name(environment: RewardModelEnvironment) -> None:
    import torch

    batch: JsonObject = {"message_log": [1, 2], "total_reward": torch.tensor([1.0, 3.0])}
    same, metrics = environment.global_post_process_and_metrics(batch)

    assert same is batch
    assert metrics["reward_model_env/mean_reward"] == 2.0
    assert environment.global_post_process_and_metrics({"message_log": []})[1] == {"reward_model_env/num_samples": 0}


def test_after_the_shutdown_nothing_is_scored_and_no_thread_is_left(checkpoint: str) -> None:
    environment = RewardModelEnvironment({"model_name": checkpoint, "device": "cpu"})
    environment.shutdown()
    environment.shutdown()

    with pytest.raises(NotReadyError):
        environment.step(logs("late"))
    assert "reward-model" not in {thread.name for thread in threading.enumerate()}


def test_a_wrong_configuration_raises_and_leaves_no_thread(checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"reward_model\.batch_size"):
        RewardModelEnvironment({"model_name": checkpoint, "batch_size": 0})
    with pytest.raises(ConfigError, match="outputs 0 to 0"):
        RewardModelEnvironment({"model_name": checkpoint, "score": {"head": 4}})

    assert "reward-model" not in {thread.name for thread in threading.enumerate()}
