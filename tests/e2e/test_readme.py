"""The README's commands, run as they stand there; only the ports are others, since those may be in use."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(?:python)?\n(.*?)```", README, re.DOTALL)
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="the README uses curl")


def block(start: str) -> str:
    """The first block that begins so."""
    return next(str(text) for text in BLOCKS if text.startswith(start))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Shell:
    """A shell in a folder with the examples, with the commands on its path and ports of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {str(11_000 + index): str(free_port()) for index in range(3)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environ = {**os.environ, "PATH": path, "ROLLMILL_HOME": str(folder / "home")}

    def run(self, commands: str) -> str:
        head, collector, profiler = self._ports.values()
        ports = f"--head-port {head} --collector-port {collector} --profiler-port {profiler}"
        for documented, own in self._ports.items():
            commands = commands.replace(documented, own)
        commands = commands.replace("--detach", f"--detach {ports}")
        done = subprocess.run(
            ["bash", "-ec", commands], cwd=self._folder, env=self._environ, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    shell = Shell(tmp_path)
    yield shell
    shell.run("rollmill down")


@needs_curl
@pytest.mark.e2e
def test_the_services_section_works_word_by_word(shell: Shell) -> None:
    shell.run(block("export PATH").partition("\n")[2])
    lines = shell.run(block("curl -sN")).splitlines()
    profile = shell.run(block("curl -s '"))

    shown = [line.rstrip() for line in block('{"responses_create_params"').splitlines()]
    lines = [line.rstrip() for line in lines]
    assert len(lines) == 21
    assert {line for line in lines if line.startswith('{"resp')} >= {
        line for line in shown if line.startswith('{"resp')
    }
    assert lines[-1] == shown[-1]
    assert profile == block('{\n    "run_id"')


def test_the_environment_shown_is_the_bundled_one_and_short() -> None:
    source = (ROOT / "examples/dice/dice.py").read_text(encoding="utf-8")

    assert block("import random") == source
    assert len(source.splitlines()) < 40


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert block("make demo") == "make demo\nmake test\n"
    assert all(f"\n{target}: $(VENV)" in makefile for target in ("demo", "test"))


def test_every_linked_page_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_demo_shown_is_that_of_the_bundled_tasks() -> None:
    """Every agent of the demo topology, with as many rollouts as its dataset gives."""
    import yaml

    topology = yaml.safe_load((ROOT / "examples/demo.yaml").read_text(encoding="utf-8"))
    shown = block("running the services")
    for dataset in topology["datasets"]:
        lines = (ROOT / "examples" / dataset["path"]).read_text(encoding="utf-8").splitlines()
        expected = len([json.loads(line) for line in lines]) * dataset["num_repeats"]
        assert f"{dataset['agent']}: {expected} of {expected} rollouts" in shown
