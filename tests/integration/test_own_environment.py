"""The guide to an environment of one's own does what it says: each of its blocks is compared or executed."""

import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmill import Resources, Rollout, Session, ToolError
from rollmill.artifacts.reader import read_rollouts
from rollmill.config.loading import find_service
from rollmill.config.topology import parse_topology, service_settings
from rollmill.contracts.json import JsonValue
from rollmill.errors import InputError
from rollmill.openai import text_message
from rollmill.server import resources_app
from rollmill.server.tools import declared_tools
from rollmill.testing import asgi_client

ROOT = Path(__file__).parents[2]
DICE = ROOT / "examples/dice"
GUIDE = ROOT / "docs/guides/own-environment.md"
MODELS_GUIDE = ROOT / "docs/guides/models.md"

Definitions = dict[str, JsonValue]


def blocks(guide: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", guide.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def executed(block: str) -> Definitions:
    names: Definitions = {"__name__": "guide"}
    exec(compile(block, str(GUIDE), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _dice_are_importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(DICE)
    monkeypatch.syspath_prepend(str(DICE))
    yield
    sys.modules.pop("dice", None)


def new_dice() -> Resources:
    dice: Resources = importlib.import_module("dice").Dice()
    return dice


def test_every_block_of_the_guide_is_of_a_kind_that_is_tested_here() -> None:
    languages = re.findall(r"^```(\w+)$", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert sorted(languages) == sorted(["python"] * 4 + ["json", "yaml", "bash", "toml"])


def test_the_guide_shows_the_files_of_the_example() -> None:
    tasks = (DICE / "dice.jsonl").read_text(encoding="utf-8")

    assert blocks(GUIDE, "python")[0] == (DICE / "dice.py").read_text(encoding="utf-8")
    assert blocks(GUIDE, "yaml") == [(DICE / "dice.yaml").read_text(encoding="utf-8")]
    assert tasks.startswith(blocks(GUIDE, "json")[0])


def test_the_whole_environment_takes_fewer_than_40_lines() -> None:
    assert len((DICE / "dice.py").read_text(encoding="utf-8").splitlines()) < 40


async def test_the_tests_that_the_guide_shows_pass() -> None:
    names = executed(blocks(GUIDE, "python")[1])
    tests = [value for name, value in names.items() if name.startswith("test_")]

    assert len(tests) == 2
    for test in tests:
        assert inspect.iscoroutinefunction(test)
        await test()


async def test_the_guides_casino_takes_its_settings_from_a_topology_and_refuses_further_rolls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    casino_type = executed(blocks(GUIDE, "python")[2])["Casino"]
    monkeypatch.setattr(sys.modules["dice"], "Casino", casino_type, raising=False)
    text = "services: {casino: {kind: resources, use: 'dice:Casino', settings: {most_rolls: 1}}}"
    casino = casino_type(service_settings(parse_topology(text, base_dir=DICE), "casino"))
    session = Session("s", {})

    await casino.roll(6, session)

    with pytest.raises(ToolError, match="the house allows 1 rolls"):
        await casino.roll(6, session)


async def test_the_guides_sums_have_two_objectives_whose_weights_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    sums_type = executed(blocks(GUIDE, "python")[3])["Sums"]
    monkeypatch.setitem(sys.modules, "sums", types.SimpleNamespace(Sums=sums_type, __name__="sums"))
    text = """services:
      plain: {kind: resources, use: 'sums:Sums'}
      scaled: {kind: resources, use: 'sums:Sums', settings: {normalise_rewards: true, reward_weights: {brief: 1}}}
    """
    topology = parse_topology(text, base_dir=DICE)
    rollout = Rollout({"sum": 7, "response": {"output": [text_message("It is 7 .")]}})

    plain, scaled = [
        await sums_type(service_settings(topology, name)).verify(rollout, Session("s", {}))
        for name in ("plain", "scaled")
    ]

    assert plain.reward == 1.0 - 0.25 * 4
    assert scaled.reward == (1.0 + 46 / 50) / 2
    assert plain.components == scaled.components == {"correct": 1.0, "brief": -4}


def test_the_guides_entry_point_names_the_environment() -> None:
    [block] = blocks(GUIDE, "toml")
    use = tomllib.loads(block)["project"]["entry-points"]["rollmill.services"]["dice"]

    definition = find_service(use)

    assert (definition.kind, use) == ("resources", "dice:Dice")


async def test_the_bounds_of_an_argument_are_in_the_schema_and_are_kept() -> None:
    [roll] = declared_tools(new_dice()).values()

    assert roll.definition["parameters"]["properties"]["sides"] == {"type": "integer", "minimum": 2, "maximum": 1000}
    with pytest.raises(InputError, match="sides"):
        await roll.call(Session("s", {}), {"sides": 1})


async def test_dice_with_a_seed_fall_the_same_way_in_every_session() -> None:
    dice = new_dice()
    [roll] = declared_tools(dice).values()
    sessions = [Session("a", {"seed": 7}), Session("b", {"seed": 7})]

    first, second = [[await roll.call(session, {"sides": 1000}) for _ in range(3)] for session in sessions]

    assert first == second
    assert len(set(first)) == 3


async def test_the_environment_is_served_as_it_is() -> None:
    async with asgi_client(resources_app(new_dice())) as http:
        seeded = await http.post("/seed_session", json={"dice": [20], "seed": 1})
        session = {"x-rollmill-session": seeded.headers["x-rollmill-session"]}
        shown = (await http.post("/roll", json={"sides": 20}, headers=session)).json()
        text = {"type": "output_text", "text": f"It shows {shown['shows']}."}
        message = {"type": "message", "role": "assistant", "content": [text]}
        row = {"dice": [20], "response": {"output": [message]}}
        verified = (await http.post("/verify", json=row, headers=session)).json()

    assert shown["sum"] == shown["shows"]
    assert verified == {**row, "reward": 1.0, "dice_sum": shown["shows"], "dice_rolled": 1}


@pytest.mark.e2e
def test_the_commands_of_the_guide_run_from_the_root_of_the_repository(tmp_path: Path) -> None:
    shutil.copytree(DICE, tmp_path / "examples/dice", ignore=shutil.ignore_patterns("__pycache__", "results"))
    [commands] = blocks(GUIDE, "bash")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    rows = list(read_rollouts(tmp_path / "examples/dice/results/dice.jsonl"))
    assert len(rows) == 16
    assert {row["reward"] for row in rows} == {0.0, 1.0}
    assert (tmp_path / "examples/dice/results/dice_reward_profiling.jsonl").exists()
    assert "dice_agent" in done.stdout


@pytest.mark.parametrize("block", blocks(MODELS_GUIDE, "yaml"))
def test_every_topology_in_the_guide_to_models_is_valid(block: str, tmp_path: Path) -> None:
    environ = {"POLICY_BASE_URL": "http://localhost:8000/v1", "POLICY_MODEL": "some-model"}

    topology = parse_topology(block, base_dir=tmp_path, environ=environ)

    assert service_settings(topology, "policy").name == "policy"
