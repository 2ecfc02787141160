import json
import math
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import InputError
from rollmill.export.metrics import read_metrics

RECORDED = Path(__file__).parents[3].parent / "shared/data/recorded/litmus_agent"


def entry(agent: str, **members: JsonValue) -> JsonObject:
    return {"agent_ref": {"name": agent}, **members}


def only_metrics(path: Path, *entries: JsonValue) -> RunFiles:
    """A run of which nothing but the metrics is left."""
    files = RunFiles.at(path / "y.jsonl")
    files.aggregate_metrics.write_text(json.dumps(entries))
    return files


def test_metrics_are_named_by_agent_and_key_metrics_once_more(tmp_path: Path) -> None:
    files = only_metrics(
        tmp_path,
        entry("a", agent_metrics={"mean/reward": 0.5, "std/reward": 0.1}, key_metrics={"mean/reward": 0.5}),
        entry("b", agent_metrics={"mean/reward": 1}, key_metrics={}),
    )

    assert read_metrics(files) == {
        "a/mean/reward": 0.5,
        "a/std/reward": 0.1,
        "key_metrics/a/mean/reward": 0.5,
        "b/mean/reward": 1.0,
    }


def test_objects_become_paths_and_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    metrics = {
        "direct": {"count": 5, "by_type": {"bool": {"accuracy": 1}}},
        "label": "good",
        "bins": [1, 2],
        "none": None,
        "passed": True,
    }

    found = read_metrics(only_metrics(tmp_path, entry("a", agent_metrics=metrics)))

    assert found == {"a/direct/count": 5.0, "a/direct/by_type/bool/accuracy": 1.0, "a/passed": 1.0}
    assert {type(value) for value in found.values()} == {float}


def test_the_profile_adds_what_the_metrics_lack_and_changes_nothing(tmp_path: Path) -> None:
    files = only_metrics(tmp_path, entry("a", agent_metrics={"mean/reward": 0.5}))
    files.agent_metrics.write_text(json.dumps([entry("a", **{"mean/reward": 0.4, "median/reward": 0.3})]))

    assert read_metrics(files) == {"a/mean/reward": 0.5, "a/median/reward": 0.3}


def test_estimates_come_with_their_interval_and_the_tasks_behind_them(files: RunFiles) -> None:
    found = read_metrics(files)

    assert found["solver/mean/reward"] == 0.75
    assert found["solver/by_kind/easy/share"] == 0.25
    assert found["key_metrics/solver/mean/reward"] == 0.75
    assert found["solver/mean_reward"] == 0.75
    assert found["solver/pass@1"] == 0.75
    assert found["solver/pass@2"] == 1.0
    assert found["solver/pass^2"] == 0.5
    assert found["solver/tasks_used/pass@2"] == 2.0
    assert found["solver/low/pass@1"] <= 0.75 <= found["solver/high/pass@1"]
    assert found["solver/standard_error/mean_reward"] == 0.25
    assert all(math.isfinite(value) for value in found.values())


def test_a_run_without_a_metrics_file_still_has_its_estimates(files: RunFiles) -> None:
    files.aggregate_metrics.unlink()

    assert read_metrics(files)["solver/pass@2"] == 1.0


def test_the_environments_own_metric_wins_over_an_estimate_of_its_name(files: RunFiles) -> None:
    files.aggregate_metrics.write_text(json.dumps([entry("solver", agent_metrics={"pass@1": 0.125})]))

    found = read_metrics(files)

    assert found["solver/pass@1"] == 0.125
    assert "solver/low/pass@1" not in found  # an interval of another number would mislead
    assert "solver/low/pass@2" in found


def test_a_run_with_no_metrics_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"z_aggregate_metrics.json: no metrics there; `rollmill profile` makes them"):
        read_metrics(RunFiles.at(tmp_path / "z.jsonl"))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[{", "not valid JSON"),
        ('[{"agent_metrics": {}}]', "not a list of metrics by agent"),
        ("[1]", "not a list of metrics by agent"),
        ("{}", "not a list of metrics by agent"),
        ("null", "not a list of metrics by agent"),
    ],
)
def test_a_broken_metrics_file_is_named(tmp_path: Path, content: str, told: str) -> None:
    files = RunFiles.at(tmp_path / "y.jsonl")
    files.aggregate_metrics.write_text(content)

    with pytest.raises(InputError, match=rf"y_aggregate_metrics\.json: {told}"):
        read_metrics(files)


def test_a_metrics_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "y.jsonl")
    files.agent_metrics.mkdir()

    with pytest.raises(InputError, match=r"y_agent_metrics\.json: Is a directory"):
        read_metrics(files)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False),
    lambda members: st.dictionaries(st.sampled_from("abc"), members, max_size=3),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["x", "y", "z"]), values, min_size=1))
def test_every_number_at_any_depth_has_one_name(tmp_path_factory: pytest.TempPathFactory, metrics: JsonObject) -> None:
    def leaves(value: JsonValue) -> int:
        return sum(map(leaves, value.values())) if isinstance(value, dict) else value is not None

    given_metrics = entry("a", agent_metrics={"always": 1.0, **metrics})
    found = read_metrics(only_metrics(tmp_path_factory.mktemp("run"), given_metrics))

    assert len(found) == 1 + leaves(metrics)


@pytest.mark.recorded
@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded run here")
def test_a_recorded_run_keeps_every_number_of_its_agents(tmp_path: Path) -> None:
    files = RunFiles.at(shutil.copytree(RECORDED, tmp_path / "run") / "rollouts.jsonl")
    (recorded,) = json.loads(files.aggregate_metrics.read_bytes())

    found = read_metrics(files)

    numbers = {name: value for name, value in recorded["agent_metrics"].items() if isinstance(value, int | float)}
    assert {name: found[f"litmus_agent_agent/{name}"] for name in numbers} == numbers
    assert found["litmus_agent_agent/direct/by_answer_type/float/count"] == 3.0
    assert found["key_metrics/litmus_agent_agent/mean/reward"] == 0.8
