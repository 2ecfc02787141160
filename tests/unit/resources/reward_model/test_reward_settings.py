"""NeMo RL's configuration is taken as it is, or refused with the reason."""

import pytest

from rollmill.contracts.json import JsonObject
from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.settings import RewardModelSettings

NEMO_RL: JsonObject = {
    "enabled": True,
    "model_name": "some/reward-model",
    "tokenizer": {"name": "some/reward-model", "chat_template_kwargs": None, "use_fastokens": False},
    "precision": "bfloat16",
    "batch_size": 8,
    "checkpoint_path": None,
    "max_model_len": 4096,
    "logprob_batch_size": 8,
    "resources": {"gpus_per_node": 1, "num_nodes": 1},
    "reward_model_cfg": {"enabled": True, "reward_model_type": "bradley_terry"},
    "dtensor_cfg": {
        "enabled": True,
        "cpu_offload": False,
        "sequence_parallel": False,
        "activation_checkpointing": False,
        "tensor_parallel_size": 1,
        "context_parallel_size": 1,
        "custom_parallel_plan": None,
    },
    "dynamic_batching": {"enabled": False},
    "sequence_packing": {"enabled": False},
    "max_grad_norm": None,
    "generation": None,
    "offload_optimizer_for_logprob": False,
}


def parse(**changes: object) -> RewardModelSettings:
    return RewardModelSettings.parse({"model_name": "m", **changes}, where="settings")


def test_a_configuration_of_nemo_rl_is_accepted_and_tells_what_has_no_effect() -> None:
    settings = RewardModelSettings.parse(NEMO_RL, where="settings")

    assert (settings.precision, settings.batch_size, settings.max_model_len) == ("bfloat16", 8, 4096)
    assert set(settings.inert) == {
        "enabled",
        "logprob_batch_size",
        "offload_optimizer_for_logprob",
        "generation",
        "dynamic_batching",
        "dtensor_cfg",
    }
    assert parse().inert == []


def test_asking_for_sequence_packing_asks_for_packed_batches() -> None:
    assert parse(sequence_packing={"enabled": True, "algorithm": "modified_first_fit"}).wants_packing
    assert not parse(sequence_packing={"enabled": False}).wants_packing
    assert not parse(batching="padded", sequence_packing={"enabled": True}).wants_packing


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"reward_model_cfg": {"enabled": True, "reward_model_type": "regression"}}, "bradley_terry"),
        ({"reward_model_cfg": {"enabled": False}}, "bradley_terry"),
        ({"dtensor_cfg": {"tensor_parallel_size": 2}}, "backend: vllm"),
        ({"dtensor_cfg": {"context_parallel_size": 2}}, "must be 1"),
        ({"dtensor_cfg": {"cpu_offload": True}}, "not supported"),
        ({"resources": {"gpus_per_node": 1, "num_nodes": 2}}, "one node"),
        ({"max_grad_norm": 1.0}, "max_grad_norm"),
        ({"device": "mps"}, "must be auto, cpu, cuda"),
        ({"base_url": "http://h:1"}, "base_url belongs"),
        ({"backend": "vllm"}, "base_url belongs"),
        ({"backend": "sglang", "base_url": "http://h:1/v1"}, "must not end with /v1"),
        ({"backend": "tei", "base_url": "http://h:1", "on_too_long": "truncate_left"}, "tei takes text"),
        ({"members": [{"model_name": "a"}]}, "either model_name or members"),
        ({"model_name": ""}, "either model_name or members"),
        ({"score": {"head": 0, "weights": [1.0]}}, "either head or weights"),
        ({"score": {"clip": [1.0, -1.0]}}, "least, greatest"),
        ({"batch_sise": 3}, "unknown setting"),
    ],
)
def test_what_is_not_supported_is_refused_with_the_reason(changes: JsonObject, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse(**changes)


def test_a_refused_api_key_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(api_key=["sk-secret"])

    assert "sk-secret" not in str(caught.value)
