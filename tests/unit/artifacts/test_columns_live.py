"""A run that is followed while it goes on: after every step it says what a reader who starts from scratch says."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.columns import read_columns, update_column_file
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.live import LiveColumns, LiveProfile
from rollmill.artifacts.manifest import Counts, Digests, Manifest, Scoring
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.errors import InputError
from rollmill.profiling import Profile, read_tables
from rollmill.report import summarize_agents


def rollout(task: int, index: int, agent: str | None = "a", **fields: JsonValue) -> Row:
    ref = {"agent_ref": {"name": agent}} if agent else {}
    return {"_ng_task_index": task, "_ng_rollout_index": index, **ref, **fields}


def append(path: Path, *rows: Row) -> None:
    with path.open("ab") as file:
        file.write(b"".join(dumps(entry) + b"\n" for entry in rows))


def manifest(files: RunFiles, **scoring: Scoring) -> None:
    digests = Digests(input="", overrides="")
    Manifest(run_id="x", counts=Counts(expected=8), digests=digests, scoring=scoring).write(files.manifest)


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles.at(tmp_path / "x.jsonl")


def approximately(found: JsonValue) -> JsonValue:
    """Compare numbers as rounding allows, everything else exactly.

    A standard deviation loses digits when values are large against their spread, here as in pandas.
    """
    if isinstance(found, dict):
        return {name: approximately(value) for name, value in found.items()}
    if isinstance(found, list):
        return [approximately(value) for value in found]
    return pytest.approx(found, rel=1e-6, abs=1e-9) if isinstance(found, float) else found


def from_scratch(files: RunFiles) -> JsonObject:
    live = LiveProfile(files)
    live.refresh()
    return live.summary()


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.sampled_from([0.0, 1.0, 0.5]) | st.floats(-1e3, 1e3),
        "score": st.integers(-3, 3) | st.floats(-1e6, 1e6) | st.none() | st.just("text"),
        "seconds": st.integers(10**9, 10**9 + 5),
    },
)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["a", "b", None]), FIELDS), max_size=24),
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.booleans(),
)
def test_after_every_prefix_it_is_equal_to_from_scratch(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, str | None, Row]],
    steps: list[int],
    stored: bool,
) -> None:
    files = RunFiles.at(tmp_path_factory.mktemp("live") / "x.jsonl")
    rollouts = [rollout(task, index, agent, **fields) for index, (task, agent, fields) in enumerate(drawn)]
    columns, profile = LiveColumns(files), LiveProfile(files)
    for step in steps:
        now, rollouts = rollouts[:step], rollouts[step:]
        append(files.rollouts, *now)
        columns.refresh()

        assert profile.refresh() == len(now)
        assert approximately(profile.summary()) == from_scratch(files)
        scratch = read_columns(files)
        assert columns.columns().frame.equals(scratch.frame)
        assert profile.columns().fields == scratch.fields
        if stored:
            update_column_file(files)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), FIELDS), min_size=1, max_size=20))
def test_its_numbers_are_those_of_the_summary(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, str, Row]]
) -> None:
    files = RunFiles.at(tmp_path_factory.mktemp("live") / "x.jsonl")
    append(files.rollouts, *(rollout(task, i, agent, **fields) for i, (task, agent, fields) in enumerate(drawn)))

    summaries = summarize_agents(read_columns(files))
    live = from_scratch(files)["agents"]

    assert live.keys() == summaries.keys()
    for agent, found in live.items():
        summary = summaries[agent]
        for name in ("tasks", "rollouts", "unscored", "binary", "solve_rate"):
            assert found[name] == summary[name], name
        for name in ("mean_reward", "pass@1", "effective_batch_share"):
            assert found["estimates"][name] == approximately(summary["estimates"][name]), name
        points = [*found["curve"], found["estimates"]["zero_variance_share"]]
        wanted = [point for point in summary["curve"] if point["k"] & (point["k"] - 1) == 0]
        wanted.append(summary["estimates"]["zero_variance_share"])
        for point, other in zip(points, wanted, strict=True):
            assert without_intervals(point) == approximately(without_intervals(other))


def without_intervals(numbers: JsonObject) -> JsonObject:
    kept = ((name, value) for name, value in numbers.items() if name not in ("low", "high", "method", "best@k"))
    return {name: without_intervals(value) if isinstance(value, dict) else value for name, value in kept}


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]), FIELDS), min_size=1, max_size=20))
def test_its_statistics_are_those_of_the_classic_profile(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, str, Row]]
) -> None:
    files = RunFiles.at(tmp_path_factory.mktemp("live") / "x.jsonl")
    append(files.rollouts, *(rollout(task, i, f"{agent}{task}", **f) for i, (task, agent, f) in enumerate(drawn)))
    live = LiveProfile(files)
    live.refresh()

    classic = Profile(read_tables(None, files.rollouts)).reward_profile

    agents = {entry.pop("agent_ref")["name"]: entry for entry in classic.agents}
    found = live.summary()["agents"]
    assert list(found) == list(agents)
    for name, entry in found.items():
        without_medians = {key: value for key, value in agents[name].items() if not key.startswith("median/")}
        assert entry["metrics"] == approximately(without_medians)
        [task] = [task for task in live.tasks() if task["agent"] == name]
        assert task == approximately(
            {"_ng_task_index": int(name[1:]), "agent": name, "num_rollouts": entry["rollouts"], **without_medians}
        )


def test_it_tells_how_tasks_were_solved_and_how_far_the_run_is(files: RunFiles) -> None:
    manifest(files)
    rewards = {0: [1, 1], 1: [0, 0], 2: [1, 0], 3: [1]}
    append(
        files.rollouts, *(rollout(t, i, reward=reward) for t, all_ in rewards.items() for i, reward in enumerate(all_))
    )
    live = LiveProfile(files)
    live.refresh()

    summary = live.summary()

    assert (summary["state"], summary["rollouts"], summary["expected_rollouts"]) == ("running", 7, 8)
    agent = summary["agents"]["a"]
    assert (agent["tasks"], agent["rollouts"], agent["binary"], agent["score_field"]) == (4, 7, True, "reward")
    assert agent["estimates"]["mean_reward"]["value"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert agent["estimates"]["pass@1"]["value"] == pytest.approx((1 + 0 + 0.5 + 1) / 4)
    assert agent["estimates"]["zero_variance_share"]["value"] == pytest.approx(2 / 3)
    assert agent["estimates"]["effective_batch_share"]["value"] == pytest.approx(2 / 7)
    assert [(point["k"], point["pass@k"]["value"], point["pass^k"]["value"]) for point in agent["curve"]] == [
        (1, pytest.approx(2.5 / 4), pytest.approx(2.5 / 4)),
        (2, pytest.approx(2 / 3), pytest.approx(1 / 3)),
    ]
    assert agent["curve"][1]["pass@k"]["tasks_used"] == 3
    assert agent["curve"][1]["pass@k"]["tasks_total"] == 4
    assert {name: agent["solve_rate"][name] for name in ("none", "some", "all")} == {"none": 1, "some": 1, "all": 2}
    assert agent["solve_rate"]["bins"] == [0, 0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_the_score_is_the_one_that_the_environment_names_also_when_that_is_known_late(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0, reward=0.0, grade=1), rollout(0, 1, "b", reward=0.5))
    live = LiveProfile(files)
    live.refresh()
    assert live.summary()["agents"]["a"]["estimates"]["mean_reward"]["value"] == 0.0
    manifest(files, a=Scoring(score_fields=["grade"]))

    assert live.refresh() == 2

    agents = live.summary()["agents"]
    assert (agents["a"]["score_field"], agents["a"]["estimates"]["mean_reward"]["value"]) == ("grade", 1.0)
    assert (agents["b"]["score_field"], agents["b"]["binary"]) == ("reward", False)


def test_a_run_that_has_not_begun_is_empty(files: RunFiles) -> None:
    live = LiveProfile(files)

    assert (live.refresh(), live.summary()["agents"], live.summary()["state"]) == (0, {}, None)
    assert len(live.columns()) == 0
    append(files.rollouts, rollout(0, 0, reward=1.0))
    assert live.refresh() == 1


def test_only_whole_lines_are_taken_in(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0, reward=1.0))
    whole = dumps(rollout(0, 1, reward=0.0))
    live = LiveProfile(files)
    taken = []
    for piece in (b"", whole[:10], whole[10:], b"\n", whole[:5].replace(b"0", b"1")):
        with files.rollouts.open("ab") as file:
            file.write(piece)
        taken.append(live.refresh())

    assert taken == [1, 0, 1, 0, 0]
    assert live.summary()["rollouts"] == 2


def shrink(files: RunFiles) -> int:
    os.truncate(files.rollouts, files.rollouts.read_bytes().index(b"\n") + 1)
    return 1


def replace_it(files: RunFiles) -> int:
    files.rollouts.unlink()
    append(files.rollouts, *(rollout(7, i, "other", reward=i / 4) for i in range(9)))
    return 9


def remove(files: RunFiles) -> int:
    files.rollouts.unlink()
    return 0


@pytest.mark.parametrize("change", [shrink, replace_it, remove])
def test_a_file_that_shrinks_or_is_replaced_is_read_again(files: RunFiles, change: object) -> None:
    append(files.rollouts, *(rollout(0, i, reward=1.0) for i in range(3)))
    update_column_file(files)
    live, columns = LiveProfile(files), LiveColumns(files)
    assert (live.refresh(), columns.refresh()[1]) == (3, False)
    assert callable(change)

    left = change(files)

    assert (live.refresh(), columns.refresh()[1]) == (left, True)
    assert live.summary() == from_scratch(files)
    assert len(columns.columns()) == left
    assert (live.refresh(), columns.refresh()[1]) == (0, False)


def test_a_wrong_line_is_an_error_each_time_and_nothing_is_lost(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0, reward=1.0))
    live = LiveProfile(files)
    live.refresh()
    size = files.rollouts.stat().st_size
    with files.rollouts.open("ab") as file:
        file.write(b"{}\n")

    for _ in range(2):
        with pytest.raises(InputError, match=r"x\.jsonl:2: _ng_task_index"):
            live.refresh()
        assert live.summary()["rollouts"] == 1
    os.truncate(files.rollouts, size)
    append(files.rollouts, rollout(0, 1, reward=0.0))
    assert live.refresh() == 1
    assert live.summary()["rollouts"] == 2


def test_duplicate_keys_are_refused(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0, reward=1.0))
    live = LiveProfile(files)
    live.refresh()
    append(files.rollouts, rollout(0, 0, "b", reward=1.0), rollout(0, 1, reward=1.0))
    live.refresh()

    with pytest.raises(InputError, match="duplicate keys in the rollouts: 0:0"):
        live.summary()


def test_rewards_that_are_not_finite_are_counted(files: RunFiles) -> None:
    append(files.rollouts, rollout(0, 0, reward=1.0))
    live = LiveProfile(files)
    live.refresh()
    with files.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": Infinity}\n')
    live.refresh()

    assert (live.summary()["rollouts"], live.summary()["refused_rollouts"]) == (1, 1)


def test_values_far_from_zero_keep_their_spread(files: RunFiles) -> None:
    live = LiveProfile(files)
    for index, value in enumerate([1e15, 1e15 + 1, 1e15 + 2, 1e15 + 3]):
        append(files.rollouts, rollout(0, index, at=value))
        live.refresh()

    metrics = live.summary()["agents"]["a"]["metrics"]

    assert metrics["std/at"] == pytest.approx(math.sqrt(5 / 3), rel=1e-6)


def test_statistics_beyond_the_range_of_doubles_are_left_out(files: RunFiles) -> None:
    append(files.rollouts, *(rollout(0, i, reward=1e308) for i in range(3)))
    live = LiveProfile(files)
    live.refresh()

    agent = live.summary()["agents"]["a"]

    assert agent["metrics"] == {"max/reward": 1e308, "min/reward": 1e308}
    assert "value" not in agent["estimates"]["mean_reward"]
