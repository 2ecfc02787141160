"""`rollmill collect --shard` and `rollmill aggregate` together: in parts as in one piece."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.reader import read_jsonl
from rollmill.cli.main import build_cli
from rollmill.contracts.json import JsonObject, loads
from rollmill.contracts.rows import row_key

TOPOLOGY = Path(__file__).parents[2] / "examples" / "mcqa.yaml"
SHARDS = 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_HEAD_URL", "ROLLMILL_TOKEN_FILE", "ROLLMILL_SHARD"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(build_cli(), words, env=environment)


def collect(output: str, *options: str, **environment: str) -> Result:
    words = ["-c", str(TOPOLOGY), "--embedded", "--output", output, "--num-repeats", "3", "--add-seed"]
    return run("collect", *words, *options, **environment)


def aggregate(*options: str, pattern: str = "x-*-of-00003.jsonl") -> Result:
    return run("aggregate", "--input-glob", pattern, "--output", "merged.jsonl", *options)


def collect_all(limit: int = 10) -> None:
    for index in range(SHARDS):
        assert collect("x.jsonl", "--shard", f"{index}/{SHARDS}", "--limit", str(limit)).exit_code == 0


def rows(path: Path) -> list[JsonObject]:
    """The rows in a fixed order, without what no two runs have in common."""
    found = sorted(read_jsonl(path), key=row_key)
    for row in found:
        row.pop("_rollmill", None)
        response = row.get("response", {})
        for part in (response, *response.get("output", ())):
            for name in ("id", "created_at", "completed_at"):
                part.pop(name, None)
    return found


def manifest(name: str) -> Manifest:
    found = read_manifest(RunFiles.at(name).manifest)
    assert found is not None
    return found


def test_the_merged_shards_are_the_run_that_is_not_parted() -> None:
    collect_all()
    assert collect("whole.jsonl", "--limit", "10").exit_code == 0
    result = aggregate()
    assert (result.exit_code, result.stderr.count("warning")) == (0, 0), result.stderr

    merged, whole = RunFiles.at("merged.jsonl"), RunFiles.at("whole.jsonl")
    assert rows(merged.rollouts) == rows(whole.rollouts)
    assert rows(merged.inputs) == rows(whole.inputs)
    assert loads(merged.aggregate_metrics.read_bytes()) == loads(whole.aggregate_metrics.read_bytes())
    one, other = manifest("merged.jsonl"), manifest("whole.jsonl")
    assert (one.digests, one.counts, one.state) == (other.digests, other.counts, "finished")
    assert one.counts.completed == 30
    assert one.mean_reward == pytest.approx(other.mean_reward)


def test_each_shard_has_files_and_an_identity_of_its_own() -> None:
    result = collect("x.jsonl", "--shard", "1/3", "--limit", "10")
    assert result.stdout == "x-00001-of-00003.jsonl\n"
    assert manifest("x-00001-of-00003.jsonl").digests.shard == "1/3"
    assert not Path("x.jsonl").exists()

    Path("x-00001-of-00003.jsonl").rename("y-00002-of-00003.jsonl")
    Path("x-00001-of-00003_manifest.json").rename("y-00002-of-00003_manifest.json")
    refused = collect("y.jsonl", "--shard", "2/3", "--limit", "10", "--resume")
    assert refused.exit_code == 1
    assert "the shard changed since it was started" in refused.stderr


def test_the_shard_may_be_told_by_a_variable_and_one_without_tasks_is_finished_at_once() -> None:
    result = collect("x.jsonl", "--limit", "2", ROLLMILL_SHARD="2/3")

    assert (result.exit_code, result.stdout) == (0, "x-00002-of-00003.jsonl\n"), result.stderr
    assert manifest("x-00002-of-00003.jsonl").state == "finished"
    assert Path("x-00002-of-00003.jsonl").read_bytes() == b""


def test_an_empty_shard_is_merged_like_any_other() -> None:
    collect_all(limit=2)

    result = aggregate()
    assert (result.exit_code, result.stderr.count("warning")) == (0, 0), result.stderr
    assert manifest("merged.jsonl").digests.shard is None
    assert len(rows(Path("merged.jsonl"))) == 6


def test_a_missing_shard_is_told_and_the_merged_run_is_not_finished() -> None:
    collect_all()
    RunFiles.at("x-00001-of-00003.jsonl").rollouts.rename("away.jsonl")

    result = aggregate()
    assert "1 of 3 shards are missing: 1\n" in result.stderr
    assert (manifest("merged.jsonl").state, manifest("merged.jsonl").digests.shard) == ("interrupted", "0,2/3")


def test_shards_of_other_numbers_or_other_tasks_are_not_merged() -> None:
    assert collect("x.jsonl", "--shard", "0/3", "--limit", "10").exit_code == 0
    assert collect("x.jsonl", "--shard", "1/2", "--limit", "10").exit_code == 0
    result = aggregate(pattern="x-*-of-*.jsonl")
    assert result.exit_code == 1
    assert "differ in the number of shards" in result.stderr

    tasks = Path("tasks.jsonl")
    tasks.write_bytes((TOPOLOGY.parent / "data" / "mcqa.jsonl").read_bytes() + b"\n")
    options = ["--input", "tasks.jsonl", "--agent", "mcqa_agent", "--limit", "10"]
    assert collect("x.jsonl", "--shard", "1/3", *options).exit_code == 0
    result = aggregate()
    assert result.exit_code == 1
    assert "differ in the dataset (the task file)" in result.stderr


@pytest.mark.parametrize("shard", ["3/3", "7/3"])
def test_a_shard_out_of_range_is_wrong_usage_and_says_which_there_are(shard: str) -> None:
    result = collect("x.jsonl", "--shard", shard)

    assert result.exit_code == 2
    told = " ".join(result.stderr.replace("│", " ").split())
    assert f"--shard: Value error, {shard} is out of range: the shards are 0/3 to 2/3" in told
