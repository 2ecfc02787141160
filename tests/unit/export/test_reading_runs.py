import os
from collections.abc import Callable

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.json import dumps
from rollmill.errors import InputError
from rollmill.export.exporter import COLUMNS
from rollmill.export.names import portable_name
from rollmill.export.reading import TEXT_ROOM, read_run

WriteRun = Callable[..., RunFiles]


def test_metrics_are_named_by_agent_and_the_headline_ones_once_more(write_run: WriteRun) -> None:
    metrics = read_run(write_run(), max_rollouts=10).metrics

    assert metrics["solver/mean/reward"] == metrics["key_metrics/solver/mean/reward"] == 0.625
    assert metrics["other/mean/reward"] == 0.25
    assert metrics["solver/mean/output_tokens"] == 10
    assert metrics["solver/mean_reward"] == 0.625
    assert (metrics["solver/pass@4"], metrics["solver/pass^4"]) == (1.0, 0.5)
    assert 0 <= metrics["solver/pass^4/lower"] <= 0.5 <= metrics["solver/pass^4/upper"] <= 1
    assert [name for name in metrics if name.startswith("key_metrics/solver/std")] == []


def test_completion_tells_how_far_a_running_run_is(write_run: WriteRun) -> None:
    run = read_run(write_run(state="running"), max_rollouts=10)

    assert run.state == "running"
    assert run.metrics["solver/completion/completed_rollouts"] == 8
    assert run.metrics["solver/completion/expected_rollouts"] == 12
    assert run.metrics["solver/completion/percent"] == pytest.approx(100 * 8 / 12, abs=0.01)
    assert run.metrics["other/completion/percent"] == 100


def test_metrics_of_an_environments_own_come_from_the_end_of_the_run(write_run: WriteRun) -> None:
    files = write_run()
    own = {"agent_metrics": {"style": 0.5, "words": "none"}, "key_metrics": {"style": 0.5}, "group_level_metrics": []}
    files.aggregate_metrics.write_bytes(dumps([{"agent_ref": {"name": "solver"}, **own}]))

    metrics = read_run(files, max_rollouts=0).metrics
    assert metrics["solver/style"] == metrics["key_metrics/solver/style"] == 0.5
    assert metrics["solver/mean/reward"] == 0.625
    assert "solver/words" not in metrics
    assert "key_metrics/solver/mean/reward" not in metrics

    later = files.aggregate_metrics.stat().st_mtime_ns + 10**9
    os.utime(files.rollouts, ns=(later, later))
    assert "solver/style" not in read_run(files, max_rollouts=0).metrics


def test_damaged_aggregate_metrics_are_an_error_that_names_the_file(write_run: WriteRun) -> None:
    files = write_run()
    files.aggregate_metrics.write_bytes(b'[{"agent_ref": 3}]')

    with pytest.raises(InputError, match=r"x_aggregate_metrics\.json"):
        read_run(files, max_rollouts=0)


def test_params_say_what_the_run_is_and_nothing_of_the_machine(write_run: WriteRun) -> None:
    params = read_run(write_run(), max_rollouts=0).params

    assert (params["run_id"], params["input"]) == ("first", "tasks.jsonl")
    assert (params["digest/input"], params["digest/overrides"]) == ("ab", "cd")
    assert (params["solver/verifier"], params["solver/score_field"]) == ("m:V 1.5", "reward")
    assert "someone" not in str(params)


def test_the_table_takes_first_rollouts_of_all_tasks_before_second_ones(write_run: WriteRun) -> None:
    run = read_run(write_run(), max_rollouts=6)

    keys = [line[1:3] for line in run.rollouts]
    assert keys == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (3, 0)]
    assert dict(zip(COLUMNS, run.rollouts[1], strict=True)) == {
        "agent": "solver",
        "task": 0,
        "rollout": 1,
        "reward": 1.0,
        "truncated": False,
        "seconds": 0.5,
        "input": "question 0",
        "output": "answer 1",
    }
    assert run.notes == ("the table has 6 of 16 rollouts",)
    nothing = read_run(write_run(), max_rollouts=0)
    assert (nothing.rollouts, nothing.notes) == ([], ())


def test_rollouts_of_any_shape_are_lines_of_the_table(write_run: WriteRun) -> None:
    long = {"responses_create_params": {"input": [{"role": "user", "content": "a" * 9999}, "odd"]}, "reward": 1}
    odd = {"responses_create_params": 3, "response": [], "_rollmill": 5}
    key = {"_ng_task_index": 0}
    run = read_run(
        write_run({**key, "_ng_rollout_index": 0, **long}, {**key, "_ng_rollout_index": 1, **odd}, manifest=False),
        max_rollouts=9,
    )

    first, second = run.rollouts
    assert first[0] == "no_agent"
    assert "characters left out" in str(first[6])
    assert len(str(first[6])) < TEXT_ROOM + 100
    assert second[3:] == (None, False, None, "", "")
    assert (run.name, run.state, run.params) == ("x", "", {})
    assert run.metrics["no_agent/mean/reward"] == 1.0


def test_rewards_that_are_not_finite_are_told(write_run: WriteRun) -> None:
    files = write_run()
    with files.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 9, "_ng_rollout_index": 0, "reward": NaN}\n')

    assert read_run(files, max_rollouts=0).notes == ("1 rollouts were left out: their reward is not a finite number",)


def test_a_run_with_no_rollouts_yet_has_its_completion(write_run: WriteRun) -> None:
    files = write_run(state="running")
    files.rollouts.unlink()

    run = read_run(files, max_rollouts=10)
    assert run.metrics["solver/completion/percent"] == 0
    assert "solver/mean/reward" not in run.metrics
    assert list(run.rollouts) == []


@pytest.mark.parametrize("name", ["../up", "a b", "x" * 129, ""])
def test_a_name_that_trackers_or_file_systems_refuse_is_an_error_with_the_fix(write_run: WriteRun, name: str) -> None:
    files = write_run(run_id=name) if not name else write_run()

    with pytest.raises(InputError, match="--name"):
        read_run(files, name=name or None, max_rollouts=0)


@pytest.mark.parametrize(
    ("name", "portable"),
    [
        ("a/pass@4", "a/pass_at_4"),
        ("a/pass^4/lower", "a/pass_hat_4/lower"),
        ("f1 (é)", "f1____"),
        ("x-y.z_1", "x-y.z_1"),
    ],
)
def test_portable_names_have_only_what_all_trackers_accept(name: str, portable: str) -> None:
    assert portable_name(name) == portable
