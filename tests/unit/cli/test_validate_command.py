import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from rollmill.cli.main import build_cli
from rollmill.server import ServiceApp
from rollmill_services.resources.mcqa.app import create_app
from rollmill_services.resources.mcqa.verifier import McqaSettings

if TYPE_CHECKING:
    from tests.conftest import Serve

OWN = """
from rollmill import InputError, Resources, Rollout, Session, Verdict


class Echo(Resources):
    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        return Verdict(float(rollout.text == rollout.require("word")))


class Broken(Echo):
    async def startup(self) -> None:
        raise RuntimeError("no database here")
"""
TOPOLOGY = """
services:
  policy: {kind: model, use: scripted}
  echo: {kind: resources, use: "%(module)s:Echo"}
  weather: {kind: resources, use: weather}
  echo_agent: {kind: agent, use: single_turn, settings: {model: policy, resources: echo}}
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
datasets:
  - {agent: echo_agent, path: tasks.jsonl}
"""
FIXTURES = "- {task: 0, answer: hello, reward: 1}\n- {task: 0, answer: bye, reward: 0}\n"


@pytest.fixture(autouse=True)
def _logging_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    module = f"echo_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(OWN)
    (tmp_path / "fixtures.yaml").write_text(FIXTURES)
    (tmp_path / "tasks.jsonl").write_text('{"word": "hello"}\n{"word": "x", "agent_ref": {"name": "weather_agent"}}\n')
    (tmp_path / "topology.yaml").write_text(TOPOLOGY % {"module": module})
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "topology.yaml"


def validate(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), ["validate", *map(str, arguments)])


def results(result: Result, service: str) -> dict[str, str]:
    checks = json.loads(result.stdout)["checks"]
    return {check["name"]: check["status"] for check in checks if check["service"] == service}


def test_each_environment_of_a_topology_has_one_line_for_each_check(topology: Path) -> None:
    result = validate("-c", topology)

    lines = [line.split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{topology}: OK, 5 services")
    assert [line[0] for line in lines[2:]] == ["echo"] * 7 + ["weather"] * 7
    assert "1 task can be seeded" in result.stdout
    assert "2 fixtures with the right reward" in result.stdout


def test_a_failed_check_ends_with_1_and_says_what_failed(topology: Path) -> None:
    (topology.parent / "fixtures.yaml").write_text(FIXTURES.replace("reward: 0", "reward: 0.5"))

    result = validate("-c", topology, "--service", "echo")

    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "fixture 1: reward 0, not 0.5" in result.stdout
    assert "weather" not in result.stdout.splitlines()[-1]


def test_the_result_can_be_had_as_json(topology: Path) -> None:
    result = validate("-c", topology, "--service", "echo", "--json")

    told = json.loads(result.stdout)
    assert told["passed"] is True
    assert told["summary"].endswith("1 dataset")
    assert results(result, "echo")["fixtures"] == "pass"
    assert set(told["checks"][0]) == {"service", "name", "status", "detail"}


def test_only_the_topology_is_looked_at_when_asked(topology: Path) -> None:
    topology.write_text(topology.read_text().replace(":Echo", ":Broken"))

    result = validate("-c", topology, "--topology-only", "--json")

    assert (result.exit_code, json.loads(result.stdout)["checks"]) == (0, [])


def test_an_environment_that_does_not_start_is_a_failed_check_and_the_others_are_checked(topology: Path) -> None:
    topology.write_text(topology.read_text().replace(":Echo", ":Broken"))

    result = validate("-c", topology, "--json")

    assert result.exit_code == 1
    assert results(result, "echo") == {"start": "fail"}
    assert "no database here" in result.stdout
    assert set(results(result, "weather").values()) == {"pass", "skip"}


@pytest.mark.e2e
def test_an_environment_that_holds_up_the_event_loop_ends_with_the_stack_that_shows_where(topology: Path) -> None:
    [module] = topology.parent.glob("echo_*.py")
    module.write_text(
        OWN.replace("return Verdict(", "\n        while len(rollout.text) > 9: pass\n        return Verdict(")
    )
    command = [sys.executable, "-m", "rollmill", "validate", "-c", str(topology), "--service", "echo", "--timeout", "3"]

    done = subprocess.run(command, cwd=topology.parent, capture_output=True, text=True, timeout=100)

    assert done.returncode == 1
    assert f'{module.name}", line' in done.stderr
    assert "in verify" in done.stderr


def test_files_may_be_named_for_one_environment(topology: Path, tmp_path: Path) -> None:
    (tmp_path / "others.jsonl").write_text('{"word": "no"}\n')
    (tmp_path / "others.yaml").write_text("- {task: 0, answer: 'no', reward: 1}\n")

    both = ("--tasks", tmp_path / "others.jsonl", "--fixtures", tmp_path / "others.yaml")
    result = validate("-c", topology, "--service", "echo", "--json", *both)

    assert result.exit_code == 0
    assert '"1 fixture with the right reward"' in result.stdout
    assert validate("-c", topology, *both).exit_code == 2


def test_a_service_that_is_no_environment_is_an_error(topology: Path) -> None:
    result = validate("-c", topology, "--service", "ecco")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "no resources service is called 'ecco'; did you mean 'echo'?" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-c", "t.yaml", "--url", "http://h"],
        ["--url", "http://h", "--service", "x"],
        ["--url", "http://h", "--topology-only"],
        ["-c", "t.yaml", "--token-file", "f"],
        ["--url", "http://h", "--timeout", "0"],
    ],
)
def test_options_that_do_not_go_together_are_wrong_usage(arguments: list[str]) -> None:
    assert validate(*arguments).exit_code == 2


@contextmanager
def served(app: ServiceApp, serve: "Serve") -> Iterator[str]:
    """Serve an application in a thread, while the command runs its own event loop."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def run() -> None:
        async with serve(app) as url:
            urls.append(url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[run()])
    thread.start()
    try:
        assert ready.wait(20)
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def test_a_server_behind_a_url_is_checked_with_the_token_of_a_file(serve: "Serve", tmp_path: Path) -> None:
    row = {"options": {"A": "x", "B": "y"}, "expected_answer": "B"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row))
    (tmp_path / "fixtures.yaml").write_text(
        "- {task: 0, answer: '\\boxed{B}', reward: 1}\n- {task: 0, answer: '\\boxed{A}', reward: 0}\n"
    )
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    files = ("--tasks", tmp_path / "tasks.jsonl", "--fixtures", tmp_path / "fixtures.yaml", "--json")
    with served(create_app(McqaSettings(token=SecretStr("secret"))), serve) as url:
        known = validate("--url", url, "--token-file", tmp_path / "token", *files)
        unknown = validate("--url", url, "--token-file", tmp_path / "wrong", *files)

    assert set(results(known, url).values()) == {"pass"}
    assert known.exit_code == 0
    assert results(unknown, url) == {"description": "fail"}
    assert unknown.exit_code == 1
    assert "secret" not in known.stdout + known.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:80", "ftp://h", "http://"])
def test_what_is_no_url_is_an_error_with_the_form(url: str) -> None:
    result = validate("--url", url)

    assert result.exit_code == 1
    assert "write it like http://127.0.0.1:8000" in result.stderr
