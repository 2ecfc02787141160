"""The reward model's example topology, collected with a tiny random model; skipped where torch is not installed."""

from pathlib import Path

import pytest

import rollmill
from rollmill.artifacts.reader import read_jsonl
from rollmill.config.topology import Topology, load_topology
from rollmill.contracts.failures import Failure
from rollmill.contracts.json import JsonObject
from rollmill_services.resources.reward_model.tiny import make_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"
TASKS = list(read_jsonl(EXAMPLES / "data/reward_model.jsonl"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="the extra reward-model (torch, transformers) is not installed")
    pytest.importorskip("transformers", reason="the extra reward-model (torch, transformers) is not installed")
    return make_checkpoint(tmp_path_factory.mktemp("reward-model"))


def example(folder: Path, tmp_path: Path, **settings: str) -> Path:
    """Write the example's topology with further settings of the reward model."""
    text = (EXAMPLES / "reward_model.yaml").read_text()
    told = "".join(f"{name}: {value}, " for name, value in settings.items())
    changed = text.replace('"${REWARD_MODEL:-Skywork/Skywork-Reward-V2-Qwen3-0.6B}"', f"{folder}, {told}x: x")
    path = tmp_path / "reward_model.yaml"
    path.write_text(changed.replace("x: x, ", "").replace("data/", f"{EXAMPLES}/data/"))
    return path


async def collected(topology: Path) -> list[tuple[JsonObject, JsonObject | Failure]]:
    return [pair async for pair in rollmill.collect(TASKS, topology=topology, concurrency=8)]


def test_the_example_names_its_model_by_a_variable() -> None:
    topology: Topology = load_topology(EXAMPLES / "reward_model.yaml", {"REWARD_MODEL": "some/model"})

    assert topology.services["reward_model"].settings["model_name"] == "some/model"


async def test_the_example_gives_every_rollout_a_score_of_its_own(folder: Path, tmp_path: Path) -> None:
    results = [result for _, result in await collected(example(folder, tmp_path))]

    rewards = {result["reward"] for result in results if isinstance(result, dict)}
    assert len(results) == len(TASKS)
    assert len(rewards) == len(TASKS)
    assert all(isinstance(result, dict) and result["reward_model"]["num_tokens"] > 20 for result in results)


async def test_what_cannot_be_scored_is_a_tagged_failure_of_the_resources_server(folder: Path, tmp_path: Path) -> None:
    results = [result for _, result in await collected(example(folder, tmp_path, max_model_len="150"))]

    failures = [result for result in results if isinstance(result, Failure)]
    scored = [result for result in results if isinstance(result, dict)]
    assert failures
    assert scored
    assert {(failure.boundary, failure.type) for failure in failures} == {("resources", "reward_model_too_long")}
    assert all(scores["reward"] != 0.0 for scores in scored)
