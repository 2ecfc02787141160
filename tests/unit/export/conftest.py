from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest, Verifier
from rollmill.contracts.json import JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import AgentProgress
from rollmill.export.exporter import COLUMNS, ExportedRun

WriteRun: TypeAlias = Callable[..., RunFiles]
MakeRun: TypeAlias = Callable[..., ExportedRun]


@pytest.fixture(autouse=True)
def no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tracker may call anyone, nor write outside of the test's folder."""
    for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME", "ROLLMILL_TENSORBOARD_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wandb_stopped() -> Iterator[None]:
    """End the process that W&B starts."""
    yield
    import wandb

    wandb.teardown()


@pytest.fixture
def make_run() -> MakeRun:
    """Make a small run as trackers get it."""

    def make(**values: JsonValue) -> ExportedRun:
        line = ("solver", 0, 1, 1.0, False, 0.5, "How many?", "7")
        assert len(line) == len(COLUMNS)
        metrics = {
            "solver/mean/reward": 0.75,
            "solver/pass@4": 0.875,
            "solver/pass^4": 0.5,
            "solver/pass@4/lower": 0.25,
            "key_metrics/solver/mean/reward": 0.75,
        }
        given = {"name": "first", "state": "finished", "step": 0, "params": {"input": "tasks.jsonl"}, **values}
        return ExportedRun(**{"metrics": metrics, "rollouts": [line], **given})

    return make


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """Write a run of two agents with two tasks of four rollouts each, or what else is given."""

    def write(*rollouts: Row, state: str = "finished", manifest: bool = True, run_id: str = "first") -> RunFiles:
        files = RunFiles(tmp_path / "x.jsonl")
        lines = rollouts or tuple(rollout(task, index) for index in range(4) for task in range(4))
        files.rollouts.write_bytes(b"".join(dumps(line) + b"\n" for line in lines))
        if manifest:
            Manifest(
                run_id=run_id,
                state=state,
                input_path="/home/someone/tasks.jsonl",
                digests=Digests(input="ab", overrides="cd"),
                counts=Counts(expected=20, completed=len(lines)),
                agents={"solver": AgentProgress(expected=12), "other": AgentProgress(expected=8)},
                verifiers={"solver": Verifier(resources="words", name="m:V", version="1.5")},
            ).write(files.manifest)
        return files

    return write


def rollout(task: int, index: int) -> Row:
    """A rollout; those of task 0 are all right, the first one of each other task is."""
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"name": "solver" if task < 2 else "other"},
        "reward": float(task == 0 or index == 0),
        "responses_create_params": {"input": f"question {task}"},
        "response": {"output": [{"type": "message", "content": f"answer {index}"}], "usage": {"output_tokens": 10}},
        "_rollmill": {"seconds": 0.5},
    }
