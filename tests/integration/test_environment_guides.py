"""The guides to each kind of environment are whole: their files, written out, do what their commands say."""

import logging
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner, Result

from rollmill.artifacts.reader import read_rollouts
from rollmill.cli.main import build_cli

GUIDES = sorted((Path(__file__).parents[2] / "docs/guides").glob("environment-*.md"))
FILE = re.compile(r"^`(?P<name>[\w.]+)`:\n\n(?P<fence>`{3,})\w+\n(?P<text>.*?)^(?P=fence)$", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def written_out(guide: Path, folder: Path) -> str:
    """Write the files that a guide shows, and return its commands."""
    text = guide.read_text(encoding="utf-8")
    for file in FILE.finditer(text):
        (folder / file["name"]).write_text(file["text"], encoding="utf-8")
    return "\n".join(COMMANDS.findall(text))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to write a guide's files to and to run its commands in; what they import and log ends with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    root = logging.getLogger()
    before, handlers, level = set(sys.modules), list(root.handlers), root.level
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) == str(tmp_path / f"{name}.py"):
            del sys.modules[name]
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def run(command: str) -> Result:
    name, *arguments = shlex.split(command)
    assert name == "rollmill"
    return CliRunner().invoke(build_cli(), arguments)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_environment_of_a_guide_conforms_and_gives_telling_rewards(guide: Path, folder: Path) -> None:
    validation, collection = written_out(guide, folder).splitlines()

    checked, collected = run(validation), run(collection)

    assert (checked.exit_code, collected.exit_code) == (0, 0), checked.output + collected.output
    assert not re.search(r"(fixtures|tasks|hostile answers) +SKIP", checked.stdout)
    rewards = [row["reward"] for row in read_rollouts(folder / collected.stdout.strip())]
    assert len(rewards) == 16
    assert 0.2 < sum(rewards) / len(rewards) < 0.95


def test_every_kind_that_can_be_written_has_its_guide() -> None:
    kinds = {"environment-single-turn", "environment-tools", "environment-code", "environment-judge"}
    assert kinds <= {guide.stem for guide in GUIDES}
