import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.artifacts.reader import read_rollouts
from rollmill.cli.main import build_cli
from rollmill.errors import ConflictError, InputError
from rollmill.scaffold import write_scaffold

FILES = {
    "resources": ["fixtures.yaml", "new_one.py", "tasks.jsonl", "test_new_one.py", "topology.yaml"],
    "agent": ["new_one.py", "tasks.jsonl", "test_new_one.py", "topology.yaml"],
}


def init(*arguments: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), ["init", *map(str, arguments)])


@pytest.mark.e2e
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["resources", "agent"])
def test_the_three_commands_that_are_printed_run_as_they_stand(kind: str, tmp_path: Path) -> None:
    result = init(kind, "new_one", "--dir", tmp_path / "my folder")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-ec", result.stdout],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 3
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAIL" not in done.stdout
    assert f"{4 if kind == 'resources' else 3} passed" in done.stdout
    rewards = [row["reward"] for row in read_rollouts(tmp_path / "my folder/new_one/results/first.jsonl")]
    assert len(rewards) == 16
    assert 0.3 < sum(rewards) / len(rewards) < 1.0


@pytest.mark.parametrize("kind", ["resources", "agent"])
def test_a_new_folder_has_the_files_with_its_name_in_them(kind: str, tmp_path: Path) -> None:
    result = init(kind, "new_one", "--dir", tmp_path)

    folder = tmp_path / "new_one"
    assert sorted(path.name for path in folder.iterdir()) == FILES[kind]
    assert "class NewOne(" in (folder / "new_one.py").read_text()
    assert "new_one:NewOne" in (folder / "topology.yaml").read_text()
    assert all(str(folder / name) in result.stderr for name in FILES[kind])


def test_what_exists_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text("precious")
    (tmp_path / "file").write_text("precious")

    for name in ("mine", "file"):
        with pytest.raises(ConflictError, match="exists; choose another name"):
            write_scaffold("resources", name, tmp_path)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["mine.py"]
    assert (tmp_path / "file").read_text() == (tmp_path / "mine" / "mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My-Env", "small letters"),
        ("2fast", "small letters"),
        ("", "small letters"),
        ("../up", "small letters"),
        ("a" * 51, "small letters"),
        ("class", "word of the Python language"),
        ("match", "word of the Python language"),
        ("json", "already, which yours would hide"),
        ("pytest", "already, which yours would hide"),
        ("policy", "another service of the new topology"),
    ],
)
def test_a_name_that_would_not_work_is_refused_before_anything_is_made(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        write_scaffold("agent", name, tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_refused_name_is_one_line_and_an_unknown_kind_wrong_usage(tmp_path: Path) -> None:
    refused = init("resources", "json", "--dir", tmp_path)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: there is a Python module 'json' already")
    assert init("model", "mine", "--dir", tmp_path).exit_code == 2
