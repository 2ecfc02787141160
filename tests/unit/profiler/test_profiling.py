import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.contracts.json import JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import RunState
from rollmill.errors import InputError
from rollmill.profiling import Profile, collect_tables, profile, read_finished, read_tables, standing_in


def row(task: int, index: int, agent: str | None = "solver", **fields: JsonValue) -> Row:
    ref = {"agent_ref": {"name": agent}} if agent else {}
    return {"_ng_task_index": task, "_ng_rollout_index": index, **ref, **fields}


def write(path: Path, *rows: Row) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))
    return path


def write_manifest(files: RunFiles, state: RunState, expected: int) -> None:
    counts = Counts(expected=expected)
    Manifest(run_id="x", state=state, counts=counts, digests=Digests(input="", overrides="")).write(files.manifest)


INPUTS = [row(task, index, question="?") for task in (0, 1) for index in (0, 1)]
ROLLOUTS = [
    row(0, 1, reward=0.0, response={"output": ["long text"], "usage": {"output_tokens": 4}}),
    row(0, 0, reward=1.0),
    row(1, 0, reward=1.0),
    row(1, 1, reward=1.0),
]


def test_files_become_frames_of_tasks_and_agents(tmp_path: Path) -> None:
    inputs, rollouts = write(tmp_path / "i.jsonl", *INPUTS), write(tmp_path / "x.jsonl", *ROLLOUTS)

    result = profile(str(inputs), rollouts)

    tasks, agents = result.tasks, result.agents
    assert tasks["_ng_task_index"].tolist() == [0, 1]
    assert tasks["mean/reward"].tolist() == [0.5, 1.0]
    assert tasks["num_rollouts"].tolist() == [2, 2]
    assert math.isnan(tasks["mean/output_tokens"][1])
    assert not {"sample", "rollout_infos", "agent_ref"} & {*tasks.columns, *agents.columns}
    assert agents["agent"].tolist() == ["solver"]
    assert agents["mean/reward"].tolist() == [0.75]
    assert result.reward_profile.tasks[0]["sample"] == {"agent_ref": {"name": "solver"}, "question": "?"}
    assert result.completion == result.reward_profile.completion


def test_frames_are_the_same_when_they_are_made_in_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = [row(task, 0, reward=task / 7) for task in range(7)]
    rollouts[5]["late"] = 1
    whole = Profile(standing_in(rollouts)).tasks
    monkeypatch.setattr("rollmill.profiling._CHUNK", 2)

    chunked = Profile(standing_in(rollouts)).tasks

    assert chunked[whole.columns].equals(whole)
    assert chunked.index.tolist() == list(range(7))


def test_a_run_with_no_rollouts_has_a_defined_empty_profile() -> None:
    result = Profile(collect_tables([row(0, 0), row(0, 1)], []), allow_partial=True)

    assert (len(result.tasks), list(result.tasks.columns)) == (0, ["_ng_task_index"])
    assert (len(result.agents), list(result.agents.columns)) == (0, ["agent"])
    assert result.completion["missing_rollouts"] == 2
    assert result.completion["reward_profile_completion_pct"] == 0.0
    [agent] = result.by_agent
    assert (agent.agent, agent.tasks, agent.rollouts, agent.expected) == ("solver", 0, 0, 2)
    assert (agent.mean, agent.std, agent.minimum, agent.maximum, agent.task_means) == (None, None, None, None, [])


def test_no_rows_at_all_are_an_empty_profile_too() -> None:
    result = Profile(collect_tables([], []))

    assert (len(result.tasks), len(result.agents), result.by_agent) == (0, 0, [])
    assert result.completion["reward_profile_completion_pct"] == 100.0


def test_missing_rollouts_are_an_error_unless_a_partial_profile_is_asked_for(tmp_path: Path) -> None:
    inputs, rollouts = write(tmp_path / "i.jsonl", *INPUTS), write(tmp_path / "x.jsonl", *ROLLOUTS[:2])

    with pytest.raises(InputError, match=r"no rollout .*: 1:0, 1:1"):
        profile(inputs, rollouts)
    assert profile(inputs, rollouts, allow_partial=True).completion["missing_tasks"] == 1


def test_faults_of_the_files_name_file_and_line(tmp_path: Path) -> None:
    inputs = write(tmp_path / "i.jsonl", *INPUTS)
    (tmp_path / "bad.jsonl").write_bytes(b"\n{}\n[1]\n")

    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        profile(inputs, tmp_path / "none.jsonl")
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"):
        profile(tmp_path / "none.jsonl", inputs)
    with pytest.raises(InputError, match=r"bad\.jsonl:3: a row must be a JSON object"):
        list(read_finished(tmp_path / "bad.jsonl"))
    with pytest.raises(InputError, match=r"y\.jsonl:1: _ng_task_index must be an integer"):
        profile(inputs, write(tmp_path / "y.jsonl", {"reward": 1.0}))


def test_a_torn_last_line_is_left_out_and_a_whole_one_without_newline_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"

    path.write_bytes(b'{"a":1}\n\n{"a":2}')
    assert list(read_finished(path)) == [{"a": 1}, {"a": 2}]
    path.write_bytes(b'{"a":1}\n{"a":"\xc3')
    assert list(read_finished(path)) == [{"a": 1}]
    path.write_bytes(b'{"a":1}\n{"a":\n')
    with pytest.raises(InputError, match=":2: not valid JSON"):
        list(read_finished(path))


def test_a_line_that_grows_while_it_is_read_is_not_read_as_two(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a":1}')
    rows = read_finished(path)

    first = next(rows)
    with path.open("ab") as file:
        file.write(b'\n{"a":2}\n')

    assert (first, list(rows)) == ({"a": 1}, [])


def test_a_running_run_counts_what_it_is_to_have_and_not_what_it_has_started(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    write(files.inputs, *INPUTS)
    write(files.rollouts, *ROLLOUTS)
    write_manifest(files, "running", 16)

    completion = profile(files.inputs, files.rollouts, allow_partial=True).completion

    assert (completion["expected_rollouts"], completion["completed_rollouts"]) == (16, 4)
    assert (completion["missing_rollouts"], completion["reward_profile_completion_pct"]) == (12, 25.0)
    with pytest.raises(InputError, match="12 of 16 rollouts were not started yet"):
        profile(files.inputs, files.rollouts)


def test_a_rollout_of_a_running_run_counts_once_its_input_row_is_there(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    write(files.inputs, *INPUTS[:3])
    write(files.rollouts, *ROLLOUTS)
    write_manifest(files, "running", 4)

    completion = profile(files.inputs, files.rollouts, allow_partial=True).completion

    assert (completion["completed_rollouts"], completion["missing_rollouts"]) == (3, 1)
    write_manifest(files, "finished", 4)
    with pytest.raises(InputError, match="rollouts with no input row: 1:1"):
        profile(files.inputs, files.rollouts, allow_partial=True)


def test_a_broken_row_of_a_running_run_is_still_an_error() -> None:
    with pytest.raises(InputError, match="rollout 2: _ng_task_index"):
        collect_tables(INPUTS, [ROLLOUTS[0], {"reward": 1.0}], live=True)


def test_a_run_that_has_only_just_begun_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = RunFiles.at("x.jsonl")
    write_manifest(files, "running", 8)

    completion = profile(files.inputs.absolute(), files.rollouts, allow_partial=True).completion

    assert (completion["expected_rollouts"], completion["completed_rollouts"]) == (8, 0)
    assert completion["reward_profile_completion_pct"] == 0.0


def test_another_runs_inputs_are_not_judged_by_this_runs_manifest(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    write(files.rollouts, *ROLLOUTS)
    write_manifest(files, "running", 99)
    inputs = write(tmp_path / "other.jsonl", *INPUTS)

    assert profile(inputs, files.rollouts).completion["expected_rollouts"] == 4
    assert len(read_tables(None, files.rollouts).inputs) == 4


def test_rollouts_stand_for_input_rows_that_are_not_known() -> None:
    result = Profile(standing_in(iter(ROLLOUTS)))

    assert result.completion["reward_profile_completion_pct"] == 100.0
    assert [task["sample"] for task in result.reward_profile.tasks] == [{"agent_ref": {"name": "solver"}}] * 2
    with pytest.raises(InputError, match="duplicate keys in the rollouts: 0:0"):
        Profile(standing_in([row(0, 0), row(0, 0)]))
    with pytest.raises(InputError, match="rollout 1: _ng_task_index"):
        standing_in([{"reward": 1.0}])


def test_agents_are_summed_up_by_the_input_rows_agent_or_else_the_rollouts_own() -> None:
    inputs = [row(0, 0, "b"), row(0, 1, "b"), row(1, 0, None), row(2, 0, None), row(3, 0, "a")]
    rollouts = [row(0, 0, "z", reward=0.5), row(0, 1, None, reward=0.0), row(1, 0, "own", reward=2), row(2, 0, None)]

    agents = {agent.agent: agent for agent in Profile(collect_tables(inputs, rollouts), allow_partial=True).by_agent}

    assert list(agents) == ["", "a", "b", "own"]
    assert (agents["b"].tasks, agents["b"].rollouts, agents["b"].expected) == (1, 2, 2)
    assert (agents["b"].mean, agents["b"].minimum, agents["b"].maximum) == (0.25, 0.0, 0.5)
    assert (agents["own"].mean, agents["own"].std, agents["own"].task_means) == (2.0, 0.0, [2.0])
    assert (agents[""].rollouts, agents[""].mean, agents[""].std, agents[""].task_means) == (1, None, None, [])
    assert (agents["a"].rollouts, agents["a"].expected) == (0, 1)


rewards = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), rewards), min_size=1, max_size=12))
def test_the_summary_of_an_agent_says_the_same_as_its_classic_entry(
    scored: list[tuple[int, str, float]],
) -> None:
    rollouts = [row(task, index, agent, reward=reward) for index, (task, agent, reward) in enumerate(scored)]

    result = Profile(standing_in(rollouts))

    for agent, entry in zip(result.by_agent, result.reward_profile.agents, strict=True):
        assert agent.agent == entry["agent_ref"]["name"]
        numbers = [entry[f"{name}/reward"] for name in ("mean", "std", "min", "max")]
        assert [agent.mean, agent.std, agent.minimum, agent.maximum] == pytest.approx(numbers, rel=1e-9, abs=1e-6)
        assert agent.rollouts == agent.expected == sum(name == agent.agent for _, name, _ in scored)
        assert agent.tasks == len(agent.task_means) == len({task for task, name, _ in scored if name == agent.agent})


def test_reading_rows_imports_no_pandas() -> None:
    import subprocess
    import sys

    code = (
        "import sys, rollmill.profiling, rollmill.cli.profile, rollmill.artifacts.profile_files\n"
        "assert not {'pandas', 'numpy', 'fastapi'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
