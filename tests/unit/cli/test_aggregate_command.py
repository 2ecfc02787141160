from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.cli.main import build_cli
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row

TOPOLOGY = """
services:
  policy: {kind: model, use: scripted, settings: {answers: [no_such_file.jsonl]}}
  own: {kind: resources, use: "own_metrics:Own"}
  solver: {kind: agent, use: single_turn, settings: {model: policy, resources: own}}
"""
OWN_METRICS = """
from rollmill.server import Resources

class Own(Resources):
    async def verify(self, rollout, session):
        return 1.0

    def compute_metrics(self, tasks):
        return {"tasks_seen": len(tasks)}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_HEAD_URL", "ROLLMILL_DEBUG", "ROLLMILL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    write("shards/a.jsonl", [row(0, reward=1.0), row(1, reward=0.0)])
    write("shards/b.jsonl", [row(2, reward=1.0)])
    return tmp_path


def row(task: int, index: int = 0, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def write(path: str, rows: list[Row]) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


def aggregate(*options: str) -> Result:
    words = ["aggregate", "--input-glob", "shards/*.jsonl", "--output", "all.jsonl", *options]
    return CliRunner().invoke(build_cli(), words)


def metrics() -> JsonObject:
    [entry] = loads(Path("all_aggregate_metrics.json").read_bytes())
    assert entry["agent_ref"] == {"name": "solver"}
    agent_metrics: JsonObject = entry["agent_metrics"]
    return agent_metrics


def test_stdout_holds_only_the_path_of_the_merged_rollouts() -> None:
    result = aggregate()

    assert (result.exit_code, result.stdout) == (0, "all.jsonl\n"), result.output
    assert "2 shards: 3 of 3 rollouts, mean reward 0.6667" in result.stderr
    assert "warning: shards/a.jsonl has no manifest" in result.stderr
    assert len(Path("all.jsonl").read_bytes().splitlines()) == 3
    assert metrics()["mean/reward"] == pytest.approx(2 / 3)


def test_an_environment_with_metrics_of_its_own_computes_them_and_no_model_is_needed(folder: Path) -> None:
    (folder / "t.yaml").write_text(TOPOLOGY)
    (folder / "own_metrics.py").write_text(OWN_METRICS)

    result = aggregate("-c", "t.yaml")

    assert result.exit_code == 0, result.output
    assert metrics()["tasks_seen"] == 3
    assert metrics()["mean/reward"] == pytest.approx(2 / 3)


def test_duplicate_keys_are_one_error_and_leave_nothing() -> None:
    write("shards/b.jsonl", [row(1, reward=1.0)])

    result = aggregate()

    assert (result.exit_code, result.stdout) == (1, "")
    assert "duplicate keys in the rollouts: 1:0 (b.jsonl)" in result.stderr
    assert not Path("all.jsonl").exists()


def test_a_run_that_is_there_is_replaced_only_when_asked_to() -> None:
    assert aggregate().exit_code == 0

    refused, replaced = aggregate(), aggregate("--overwrite")

    assert (refused.exit_code, "--overwrite" in refused.stderr, "--resume" in refused.stderr) == (1, True, False)
    assert replaced.exit_code == 0


def test_failures_that_are_left_are_told() -> None:
    write("shards/a_failures.jsonl", [row(9, failure={"boundary": "model"})])
    write("shards/a_materialized_inputs.jsonl", [row(0), row(1), row(9)])

    assert "1 rollouts failed for good; the reasons are in all_failures.jsonl" in aggregate().stderr


def test_wrong_usage_and_wrong_names_are_told() -> None:
    assert aggregate("-c", "t.yaml", "--head", "http://h").exit_code == 2
    nothing = CliRunner().invoke(build_cli(), ["aggregate", "--input-glob", "none/*.jsonl", "--output", "all.jsonl"])
    assert (nothing.exit_code, "no rollouts file matches" in nothing.stderr) == (1, True)
