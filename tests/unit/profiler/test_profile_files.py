from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.profile_files import write_profile
from rollmill.artifacts.writer import StorageError
from rollmill.contracts.json import JsonValue, loads
from rollmill.contracts.rows import Row
from rollmill.metrics import RewardProfile, build_profile

TASKS = (
    b'{"_ng_task_index":0,"mean/reward":0.5,"mean/output_tokens":7.0,"max/reward":1.0,"max/output_tokens":8.0,'
    b'"min/reward":0.0,"min/output_tokens":6.0,"median/reward":0.5,"median/output_tokens":7.0,'
    b'"std/reward":0.7071067811865476,"std/output_tokens":1.4142135623730951,'
    b'"sample":{"agent_ref":{"name":"solver"},"question":"2+2"},"num_rollouts":2,"expected_num_rollouts":2,'
    b'"missing_num_rollouts":0,"reward_profile_completion_pct":100.0,"rollout_infos":['
    b'{"rollout_id":"0:0","_ng_task_index":0,"_ng_rollout_index":0,"reward":1.0,"output_tokens":6},'
    b'{"rollout_id":"0:1","_ng_task_index":0,"_ng_rollout_index":1,"reward":0.0,"output_tokens":8}]}\n'
    b'{"_ng_task_index":1,"mean/reward":1.0,"max/reward":1.0,"min/reward":1.0,"median/reward":1.0,"std/reward":0.0,'
    b'"sample":{"agent_ref":{"name":"solver"},"question":"3+3"},"num_rollouts":1,"expected_num_rollouts":1,'
    b'"missing_num_rollouts":0,"reward_profile_completion_pct":100.0,"rollout_infos":['
    b'{"rollout_id":"1:0","_ng_task_index":1,"_ng_rollout_index":0,"reward":1.0}]}\n'
)
AGENTS = b"""[
  {
    "agent_ref": {
      "name": "solver"
    },
    "mean/reward": 0.6666666666666666,
    "mean/output_tokens": 7.0,
    "max/reward": 1.0,
    "max/output_tokens": 8.0,
    "min/reward": 0.0,
    "min/output_tokens": 6.0,
    "median/reward": 1.0,
    "median/output_tokens": 7.0,
    "std/reward": 0.5773502691896258,
    "std/output_tokens": 1.4142135623730951
  }
]
"""


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def small_profile() -> RewardProfile:
    inputs = [row(0, 0, question="2+2"), row(0, 1, question="2+2"), row(1, 0, question="3+3")]
    rollouts = [
        row(0, 1, reward=0.0, response={"usage": {"output_tokens": 8}}),
        row(1, 0, reward=1.0),
        row(0, 0, reward=1.0, response={"usage": {"output_tokens": 6}}),
    ]
    return build_profile(inputs, rollouts)


def test_both_files_hold_the_classic_profile(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "new" / "x.jsonl")

    write_profile(files, small_profile())

    assert files.reward_profiling.read_bytes() == TASKS
    assert files.agent_metrics.read_bytes() == AGENTS
    assert {path.name for path in files.rollouts.parent.iterdir()} == {
        "x_reward_profiling.jsonl",
        "x_agent_metrics.json",
    }


def test_a_profile_replaces_an_older_one(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    files.reward_profiling.write_text("old\n" * 1000)

    write_profile(files, small_profile())

    assert files.reward_profiling.read_bytes() == TASKS


def test_an_empty_profile_gives_an_empty_file_and_an_empty_list(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")

    write_profile(files, build_profile([], []))

    assert files.reward_profiling.read_bytes() == b""
    assert loads(files.agent_metrics.read_bytes()) == []


def test_a_profile_that_breaks_half_way_leaves_the_old_one_and_no_other_file(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    files.reward_profiling.write_text("old\n")
    profile = build_profile([row(0, 0), row(1, 0, bad={1: object()})], [row(0, 0), row(1, 0)])

    with pytest.raises(TypeError):
        write_profile(files, profile)

    assert files.reward_profiling.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["x_reward_profiling.jsonl"]


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageError, match="x_reward_profiling"):
        write_profile(RunFiles.at(tmp_path / "file" / "x.jsonl"), small_profile())
