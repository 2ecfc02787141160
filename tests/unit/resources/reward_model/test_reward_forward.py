"""Every form of the forward pass gives each conversation the score that it has alone."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import pytest

from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.checkpoint import load_model
from rollmill_services.resources.reward_model.forward import (
    Forward,
    difference,
    one_by_one,
    packed,
    padded,
    probe_batch,
    use_packing,
    why_not_packed,
)
from rollmill_services.resources.reward_model.local import LocalWorker, load_local, plan_devices
from rollmill_services.resources.reward_model.settings import ModelSettings, RewardModelSettings
from rollmill_services.resources.reward_model.worker import WorkerLostError

if TYPE_CHECKING:
    from tests.unit.resources.reward_model.conftest import MakeCheckpoint
    from transformers import PreTrainedModel

PAD = 0
CLOSE = 1e-5


@pytest.fixture
def model(checkpoint: str) -> "PreTrainedModel":
    import torch

    return load_model(ModelSettings(model_name=checkpoint), torch.float32, trust_remote_code=False)


def conversations(vocabulary: int) -> list[list[int]]:
    """Lengths from 1 on; some end in the padding token, some hold it, one is nothing else."""
    arbitrary = [[(7 * n + 3 * place + 1) % vocabulary for place in range(n)] for n in (1, 2, 5, 31, 90, 300)]
    return [*arbitrary, [5, 6, PAD], [5, PAD, 6], [PAD], [5, 6, PAD, PAD, PAD]]


def test_padded_scores_are_those_of_single_conversations(model: "PreTrainedModel") -> None:
    batch = conversations(model.config.vocab_size)
    alone = one_by_one(model, batch)

    assert difference(lambda _: alone, partial(padded, model), batch) <= CLOSE
    assert len({round(score, 3) for [score] in alone}) == len(alone)


def test_packed_scores_are_those_of_single_conversations(model: "PreTrainedModel") -> None:
    batch = conversations(model.config.vocab_size)
    alone = one_by_one(model, batch)
    use_packing(model, flash=False)

    assert why_not_packed(model) == ""
    assert difference(lambda _: alone, partial(packed, model), batch) <= CLOSE
    assert difference(lambda _: alone, partial(packed, model), batch[::-1]) > 0.01  # the measure sees a mistake


def test_a_model_without_a_padding_token_is_scored_all_the_same(model: "PreTrainedModel") -> None:
    batch = conversations(model.config.vocab_size)
    before = padded(model, batch)
    model.config.pad_token_id = None

    assert padded(model, batch) == before


def test_the_score_is_read_at_the_last_token_also_when_that_is_the_padding_token(model: "PreTrainedModel") -> None:
    import torch

    ids = [5, 6, PAD]
    with torch.inference_mode():
        hidden = model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        expected = model.score(hidden[-1]).item()
        pooled = model(input_ids=torch.tensor([ids])).logits.item()

    assert padded(model, [ids])[0][0] == pytest.approx(expected, abs=CLOSE)
    assert abs(pooled - expected) > 0.01  # transformers' own pooling skips it


def packed_badly(model: "PreTrainedModel", batch: Sequence[Sequence[int]], *, trap: str) -> list[list[float]]:
    """Packing as one would write it first, with one of its silent mistakes."""
    import torch

    row = torch.tensor([[token for ids in batch for token in ids]])
    positions = torch.cat([torch.arange(len(ids)) for ids in batch])[None]
    ends = torch.tensor([len(ids) for ids in batch]).cumsum(0) - 1
    with torch.inference_mode():
        hidden = model.model(
            input_ids=row,
            position_ids=None if trap == "no positions" else positions,
            attention_mask=torch.ones_like(row) if trap == "mask" else None,
            use_cache=trap == "cache",
        ).last_hidden_state[0]
        scores: list[list[float]] = model.score(hidden[ends]).tolist()
    return scores


@pytest.mark.parametrize("trap", ["mask", "cache", "no positions"])
def test_the_check_at_load_sees_each_way_in_which_packing_goes_wrong(model: "PreTrainedModel", trap: str) -> None:
    batch = probe_batch(model.config)
    bad: Forward = partial(packed_badly, model, trap=trap)

    assert difference(partial(one_by_one, model), bad, batch) > 0.01
    assert difference(partial(one_by_one, model), partial(packed_badly, model, trap="none"), batch) < 1e-4


def test_an_output_that_is_not_a_number_or_is_missing_is_an_infinite_difference() -> None:
    assert difference(lambda _: [[1.0]], lambda _: [[float("nan")]], [[1]]) == float("inf")
    assert difference(lambda _: [[1.0], [2.0]], lambda _: [[1.0]], [[1], [2]]) == float("inf")


def test_a_model_that_attends_in_a_window_is_not_packed(model: "PreTrainedModel") -> None:
    model.config.layer_types = ["full_attention", "sliding_attention"]

    assert "sliding_attention" in why_not_packed(model)


@pytest.mark.parametrize("batching", ["auto", "padded", "packed"])
async def test_workers_on_the_cpu_give_the_single_scores(checkpoint: str, batching: str) -> None:
    from rollmill_services.resources.reward_model.rendering import Rendered

    settings = RewardModelSettings(model_name=checkpoint, batching=batching, replicas=2, device="cpu")
    local = load_local(settings.models[0], settings, 512)
    batch = [Rendered("", tuple(ids)) for ids in conversations(200)]
    try:
        alone = [(await local.workers[0].outputs([one]))[0][0] for one in batch]
        together = [score for [score] in await local.workers[1].outputs(batch)]
    finally:
        for worker in local.workers:
            await worker.close()

    assert (local.device, local.precision, local.limits.packed) == ("cpu", "float32", batching != "padded")
    assert local.batch_difference <= CLOSE
    assert together == pytest.approx(alone, abs=CLOSE)


def test_packing_that_was_asked_for_and_is_not_possible_is_an_error(make: "MakeCheckpoint") -> None:
    import json
    from pathlib import Path

    folder = make(seed=3)
    config = Path(folder, "config.json")
    told = json.loads(config.read_text())
    told |= {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 16, "use_sliding_window": True}
    config.write_text(json.dumps(told))
    asked = RewardModelSettings(model_name=folder, batching="packed", device="cpu")
    open_choice = RewardModelSettings(model_name=folder, device="cpu")

    with pytest.raises(ConfigError, match="cannot be packed: it has layers"):
        load_local(asked.models[0], asked, 512)
    local = load_local(open_choice.models[0], open_choice, 512)
    assert not local.limits.packed
    assert local.batch_difference <= CLOSE


def test_each_gpu_gets_a_worker_and_a_cpu_one() -> None:
    def plan(gpus: int, **options: object) -> list[str]:
        return plan_devices(RewardModelSettings.model_validate({"model_name": "m", **options}), gpus)

    assert plan(2) == ["cuda:0", "cuda:1"]
    assert plan(0) == ["cpu"]
    assert plan(2, device="cpu") == ["cpu"]
    assert plan(2, device="cuda:1") == ["cuda:1"]
    assert plan(8, resources={"gpus_per_node": 2}) == ["cuda:0", "cuda:1"]
    assert plan(2, replicas=3) == ["cuda:0", "cuda:1", "cuda:0"]
    with pytest.raises(ConfigError, match="0 visible GPUs"):
        plan(0, device="cuda")
    with pytest.raises(ConfigError, match="1 visible GPUs"):
        plan(1, device="cuda:1")


async def test_a_broken_device_loses_its_worker_and_any_other_error_only_the_batch() -> None:
    def broken(_: Sequence[Sequence[int]]) -> list[list[float]]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def failing(_: Sequence[Sequence[int]]) -> list[list[float]]:
        raise RuntimeError("index out of range")

    for forward, expected in ((broken, WorkerLostError), (failing, RuntimeError)):
        worker = LocalWorker("cuda:0-0", forward, cpu_threads=None)
        try:
            with pytest.raises(expected) as caught:
                await worker.outputs([])
            assert type(caught.value) is expected
        finally:
            await worker.close()
