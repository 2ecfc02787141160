import importlib.machinery
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.cli.main import build_cli
from rollmill.contracts.json import dumps
from rollmill.export.exporter import ExportedRun
from rollmill.export.exporters import ExportSettings, MissingExtraError, Tracker, export_run, open_exporters

WriteRun = Callable[..., RunFiles]
MakeRun = Callable[..., ExportedRun]

TOPOLOGY = """
services:
  policy: {kind: model, use: scripted, settings: {answers: [tasks.jsonl], skill: 1.0}}
  words: {kind: resources, use: string_match}
  solver: {kind: agent, use: single_turn, settings: {model: policy, resources: words}}
datasets:
  - {agent: solver, path: tasks.jsonl, num_repeats: 2}
"""


class Broken:
    """A tracker that cannot be written to."""

    def export(self, run: ExportedRun) -> str:
        raise ConnectionError(f"no way to send {run.name}\nand a long story")


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(build_cli(), list(map(str, words)))


def hide(monkeypatch: pytest.MonkeyPatch, *hidden: str, namespace: bool = False) -> None:
    """Make modules look as if they were not installed, or as if only a folder of that name lay about."""
    find = importlib.util.find_spec
    spec = importlib.machinery.ModuleSpec("folder", None) if namespace else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name in hidden else find(name))


def tags(folder: Path) -> list[str]:
    events = EventAccumulator(str(folder)).Reload()
    return [*events.Tags()["scalars"], *events.Tags()["tensors"]]


def collect(tmp_path: Path, *options: str, tasks: int = 2) -> Result:
    lines = [{"responses_create_params": {"input": f"Say {n}"}, "expected_answer": str(n)} for n in range(tasks)]
    (tmp_path / "tasks.jsonl").write_bytes(b"".join(dumps(line) + b"\n" for line in lines))
    (tmp_path / "t.yaml").write_text(TOPOLOGY)
    return run("collect", "-c", "t.yaml", "--embedded", "--output", "out/x.jsonl", *options)


def test_a_run_is_exported_and_stdout_says_where_to(write_run: WriteRun, tmp_path: Path) -> None:
    result = run("export", write_run().rollouts, "--to", "tensorboard", "--name", "mine", "--max-rollouts", "3")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("tensorboard: runs/mine")
    assert "note: the table has 3 of 16 rollouts" in result.stderr
    found = tags(tmp_path / "runs" / "mine")
    assert {"solver/pass_at_4", "key_metrics/other/mean/reward", "rollouts/text_summary"} <= set(found)


def test_rollouts_can_be_kept_back(write_run: WriteRun, tmp_path: Path) -> None:
    path = write_run(state="running").rollouts
    result = run("export", path, "--to", "tensorboard", "--no-rollouts", "--tensorboard-dir", "tb")

    assert (result.exit_code, result.stderr) == (0, "")
    assert "rollouts/text_summary" not in tags(tmp_path / "tb" / "first")


def test_a_failing_tracker_is_a_warning_and_the_others_get_the_run(
    write_run: WriteRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file where MLflow wants a folder")
    words = ["--to", "mlflow", "--tracking-uri", f"sqlite:///{tmp_path}/taken/m.db", "--to", "tensorboard"]
    monkeypatch.setenv("MLFLOW_SQLALCHEMYSTORE_MAX_RETRIES", "0")
    result = run("export", write_run().rollouts, *words)

    assert result.exit_code == 1
    assert "warning: not exported to mlflow: " in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout.startswith("tensorboard: ")


def test_the_password_of_a_tracking_uri_is_not_told(write_run: WriteRun) -> None:
    result = run("export", write_run().rollouts, "--to", "mlflow", "--tracking-uri", "ftp://someone:secret@example.org")

    assert (result.exit_code, "secret" in result.output) == (1, False)
    assert "ftp://***@example.org" in result.stderr


def test_every_exporter_gets_its_turn_whatever_the_others_do(make_run: MakeRun, tmp_path: Path) -> None:
    works = open_exporters([Tracker.TENSORBOARD], ExportSettings(tensorboard_dir=tmp_path))[Tracker.TENSORBOARD]
    outcomes = dict(export_run(make_run(), {Tracker.WANDB: Broken(), Tracker.TENSORBOARD: works}))

    assert isinstance(outcomes[Tracker.WANDB], ConnectionError)
    assert str(tmp_path) in str(outcomes[Tracker.TENSORBOARD])


def test_a_collection_is_exported_at_its_end(tmp_path: Path) -> None:
    result = collect(tmp_path, "--export", "tensorboard", "--no-export-rollouts")

    assert (result.exit_code, result.stdout) == (0, "out/x.jsonl\n"), result.output
    assert "tensorboard: runs/" in result.stderr
    [folder] = (tmp_path / "runs").iterdir()
    assert "solver/mean/reward" in tags(folder)
    assert "rollouts/text_summary" not in tags(folder)


def test_an_exporter_that_fails_leaves_the_exit_code_of_the_collection(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where TensorBoard wants a folder")
    result = collect(tmp_path, "--export", "tensorboard")

    assert (result.exit_code, result.stdout) == (0, "out/x.jsonl\n"), result.output
    assert "warning: not exported to tensorboard: " in result.stderr
    assert "try again with `rollmill export`" in result.stderr


def test_a_missing_library_is_told_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "wandb", "alembic")
    result = collect(tmp_path, "--export", "wandb", "--export", "mlflow", "--export", "tensorboard")

    assert result.exit_code == 1
    assert "no library for wandb and mlflow; install it: pip install 'rollmill[wandb,mlflow]'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_the_folder_that_wandb_makes_is_not_taken_for_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, "wandb", namespace=True)

    with pytest.raises(MissingExtraError, match=r"rollmill\[wandb\]"):
        open_exporters([Tracker.WANDB], ExportSettings())


@pytest.mark.parametrize("words", [["x.jsonl"], ["x.jsonl", "--to", "elsewhere"], ["--to", "wandb"]])
def test_wrong_usage_is_exit_code_2(words: list[str]) -> None:
    assert run("export", *words).exit_code == 2


def test_a_run_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = run("export", tmp_path / "none.jsonl", "--to", "tensorboard")

    assert (result.exit_code, "none.jsonl" in result.stderr) == (1, True)
    assert "Traceback" not in result.stderr


def test_settings_come_from_options_then_variables_then_defaults() -> None:
    variables = {
        "WANDB_PROJECT": "w",
        "WANDB_DIR": "wd",
        "MLFLOW_EXPERIMENT_NAME": "m",
        "MLFLOW_TRACKING_URI": "https://mlflow.example.org",
        "ROLLMILL_TENSORBOARD_DIR": "tb",
        "WANDB_MODE": "",
    }
    found = ExportSettings.from_environment(variables)
    assert (found.wandb_project, found.mlflow_experiment, found.wandb_dir) == ("w", "m", Path("wd"))
    assert (found.tracking_uri, found.tensorboard_dir) == ("https://mlflow.example.org", Path("tb"))
    given = ExportSettings.from_environment(variables, project="p", wandb_dir=Path("here"), tracking_uri="sqlite:///x")
    assert (given.wandb_project, given.mlflow_experiment) == ("p", "p")
    assert (given.wandb_dir, given.tracking_uri) == (Path("here"), "sqlite:///x")
    assert ExportSettings.from_environment({}) == ExportSettings()


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "k"}, "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "online"}, "online"),
    ],
)
def test_wandb_is_online_only_when_the_environment_says_so(variables: dict[str, str], mode: str) -> None:
    assert ExportSettings.from_environment(variables).wandb_mode == mode
