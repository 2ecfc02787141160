"""A real run's own aggregate, reproduced from its rows."""

from pathlib import Path

import pytest

from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rows import Row, light_row
from rollmill.metrics import aggregate_metrics, build_profile

RUN = Path(__file__).parents[3].parent / "shared/data/recorded/litmus_agent"

pytestmark = [pytest.mark.recorded, pytest.mark.skipif(not RUN.is_dir(), reason="no recorded run here")]


def rows_of(name: str) -> list[Row]:
    return [loads(line) for line in (RUN / name).read_bytes().splitlines()]


def recorded() -> JsonObject:
    [entry] = loads((RUN / "rollouts_aggregate_metrics.json").read_bytes())
    del entry["agent_metrics"]["direct"]  # that environment's own
    return dict(entry)


def close(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {name: close(member) for name, member in value.items()}
    if isinstance(value, list):
        return [close(member) for member in value]
    return pytest.approx(value, rel=1e-14, abs=0) if isinstance(value, float) else value


def test_aggregate_metrics_reproduces_the_recorded_run() -> None:
    result = aggregate_metrics([light_row(row) for row in rows_of("rollouts.jsonl")])
    expected = recorded()

    assert result["agent_metrics"] == close(expected["agent_metrics"])
    assert result["group_level_metrics"] == close(expected["group_level_metrics"])
    assert expected["key_metrics"].items() <= result["key_metrics"].items()


def test_the_profile_reproduces_the_recorded_run() -> None:
    profile = build_profile(rows_of("rollouts_materialized_inputs.jsonl"), rows_of("rollouts.jsonl"))
    expected = recorded()

    without_sample = [{**entry, "sample": None} for entry in profile.tasks]
    assert without_sample == close([{**entry, "sample": None} for entry in expected["group_level_metrics"]])
    assert profile.agents == [{"agent_ref": expected["agent_ref"], **close(expected["agent_metrics"])}]
    assert profile.completion["complete_tasks"] == 5


def test_the_recorded_members_are_in_the_same_order() -> None:
    result = aggregate_metrics(rows_of("rollouts.jsonl"))
    expected = recorded()

    for found, entry in zip(result["group_level_metrics"], expected["group_level_metrics"], strict=True):
        assert list(found) == list(entry)
        assert [list(info) for info in found["rollout_infos"]] == [list(info) for info in entry["rollout_infos"]]
    assert list(result["agent_metrics"]) == list(expected["agent_metrics"])
