"""The known rewards of the bundled environments, and what else the conformance kit checks, on their example topologies."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from rollmill.cli.list import installed
from rollmill.cli.readme import readme_of
from rollmill.cli.validating import Material, check_environments
from rollmill.config.topology import load_topology

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / "services/rollmill_services/resources"
GUIDE = ROOT / "docs/guides/own-environment.md"
LIBRARIES = {"reasoning_gym": "reasoning_gym"}
"""Environments that need a library which is not among those for development."""
WITH_FIXTURES = sorted(path.parent.name for path in ENVIRONMENTS.glob("*/fixtures.yaml"))


def example(name: str) -> Path:
    return ROOT / readme_of(f"rollmill_services.resources.{name}.app").example


def test_the_environments_have_fixtures() -> None:
    assert set(WITH_FIXTURES) >= {
        "code_tests",
        "counter",
        "instruction_following",
        "llm_judge",
        "math_answer",
        "mcqa",
        "multi_step_tools",
        "reasoning_gym",
        "string_match",
        "structured_output",
        "weather",
    }


def test_every_environment_of_the_catalogue_says_what_it_is_and_names_an_example_that_is_there() -> None:
    folders = {path.parent.name for path in ENVIRONMENTS.glob("*/app.py")}
    listed = {line["name"]: line for line in installed() if line["kind"] == "resources"}

    assert folders <= set(listed)
    assert [name for name in folders if not listed[name]["description"] or not example(name).is_file()] == []


@pytest.mark.parametrize("name", WITH_FIXTURES)
def test_an_environment_passes_every_check_with_its_fixtures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in LIBRARIES and find_spec(LIBRARIES[name]) is None:
        pytest.skip(f"{LIBRARIES[name]} is not installed")
    monkeypatch.syspath_prepend(example(name).parent)  # as if started there
    topology = load_topology(example(name))

    checks = check_environments(topology, name, Material(None, None, 60.0))

    assert [f"{check.name}: {check.detail}" for check in checks if check.status == "fail"] == []
    passed = {check.name for check in checks if check.status == "pass"}
    assert {"tools", "tasks", "missing fields", "fixtures", "hostile answers"} <= passed


def test_the_dice_pass_as_the_guide_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples/dice")
    topology = load_topology(ROOT / "examples/dice/dice.yaml")

    checks = check_environments(topology, None, Material(None, None, 60.0))

    shown = [line.split() for line in GUIDE.read_text(encoding="utf-8").splitlines() if line.startswith("dice     ")]
    assert shown == [f"dice {check.name} {check.status.upper()} {check.detail}".split() for check in checks]
    assert "fail" not in {check.status for check in checks}
