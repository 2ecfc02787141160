"""What would score with random weights, or not at all, is refused at start."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rollmill.contracts.json import JsonObject
from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.scorer import Judgement, Scorer
from rollmill_services.resources.reward_model.settings import RewardModelSettings

if TYPE_CHECKING:
    from tests.unit.resources.reward_model.conftest import MakeCheckpoint


async def refusal(folder: str, **options: object) -> str:
    scorer = Scorer(RewardModelSettings.model_validate({"model_name": folder, "device": "cpu", **options}))
    with pytest.raises(ConfigError) as caught:
        await scorer.open()
    return caught.value.detail


def change_config(folder: str, change: Callable[[JsonObject], object]) -> None:
    path = Path(folder, "config.json")
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def touch(path: Path) -> None:
    path.touch()


def remove(folder: str, name: str) -> None:
    Path(folder, name).unlink()


async def test_a_checkpoint_without_the_weights_of_its_score_head_is_refused(make: "MakeCheckpoint") -> None:
    from safetensors.torch import load_file, save_file

    folder = make(seed=1)
    weights = load_file(Path(folder, "model.safetensors"))
    del weights["score.weight"]
    save_file(weights, Path(folder, "model.safetensors"), metadata={"format": "pt"})

    assert "score.weight" in await refusal(folder)


async def test_a_score_head_of_another_width_is_refused(make: "MakeCheckpoint") -> None:
    folder = make(seed=1, labels=2)
    change_config(folder, lambda config: config.update(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}))

    assert "score.weight" in await refusal(folder)


async def test_a_language_model_is_refused_because_it_has_no_score_head(make: "MakeCheckpoint") -> None:
    folder = make(seed=1)
    change_config(folder, lambda config: config.update(architectures=["Qwen3ForCausalLM"]))

    detail = await refusal(folder)
    assert "Qwen3ForCausalLM" in detail
    assert "no score head" in detail


async def test_a_classifier_that_reads_in_both_directions_is_refused(make: "MakeCheckpoint") -> None:
    from transformers import BertConfig, BertForSequenceClassification

    folder = make(seed=1)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=300, num_labels=1, **shape)).save_pretrained(folder)

    assert "BertForSequenceClassification" in await refusal(folder)


async def test_several_outputs_without_a_choice_are_refused(make: "MakeCheckpoint") -> None:
    folder = make(labels=3)

    assert "choose with score.head or score.weights" in await refusal(folder)
    assert "outputs 0 to 2" in await refusal(folder, score={"head": 3})
    assert "has 2 values" in await refusal(folder, score={"weights": [1.0, 2.0]})


async def test_a_folder_without_a_model_is_refused(checkpoint: str, tmp_path: Path) -> None:
    assert "cannot be loaded" in await refusal(str(tmp_path))
    assert "cannot be loaded" in await refusal(str(tmp_path), tokenizer={"name": checkpoint})
    assert "weights" in await refusal(checkpoint, checkpoint_path=str(tmp_path))


async def test_a_distributed_checkpoint_is_refused_with_the_way_to_convert_it(checkpoint: str, tmp_path: Path) -> None:
    touch(tmp_path / ".metadata")

    assert "convert_dcp_to_hf" in await refusal(checkpoint, checkpoint_path=str(tmp_path))


async def test_a_tokenizer_without_a_chat_template_is_refused_unless_one_is_given(make: "MakeCheckpoint") -> None:
    folder = make(seed=1)
    remove(folder, "chat_template.jinja")

    assert "has no chat template" in await refusal(folder)
    scorer = Scorer(RewardModelSettings(model_name=folder, tokenizer={"chat_template": "passthrough"}, device="cpu"))
    await scorer.open()
    await scorer.close()


async def test_weights_from_another_folder_are_those_that_score(make: "MakeCheckpoint", checkpoint: str) -> None:
    other = make(seed=9)
    question = [{"role": "user", "content": "hello"}]

    async def reward(**names: str) -> float:
        scorer = Scorer(RewardModelSettings.model_validate({"device": "cpu", **names}))
        await scorer.open()
        try:
            [judged] = await scorer.score([question])
        finally:
            await scorer.close()
        assert isinstance(judged, Judgement)
        return judged.reward

    assert await reward(model_name=checkpoint, checkpoint_path=other) == await reward(model_name=other)
    assert await reward(model_name=checkpoint) != await reward(model_name=other)


async def test_without_the_libraries_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)

    assert "pip install 'rollmill[reward-model]'" in await refusal("any/model")
