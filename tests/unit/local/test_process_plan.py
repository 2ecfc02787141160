from pathlib import Path

import pytest

from rollmill.config.topology import Topology, parse_topology, topology_digest
from rollmill.contracts.json import dumps
from rollmill.local.plan import Placement, ProcessPlan, plan_processes

TOPOLOGY = """
services:
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
  weather: {kind: resources, use: weather, replicas: 2, settings: {session_idle_seconds: 60}}
  policy: {kind: model, use: openai_compatible, settings: {base_url: "http://engine", api_key: "${KEY}", model: m}}
  other: {kind: resources, use: weather, settings: {log_level: DEBUG}}
"""


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    return parse_topology(TOPOLOGY, base_dir=tmp_path, environ={"KEY": "sk-hunter2"})


@pytest.fixture
def plans(topology: Topology, tmp_path: Path) -> dict[str, ProcessPlan]:
    placement = Placement(token="t0k3n", data_dir=tmp_path / "runs", head_port=1, collector_port=2, profiler_port=3)
    return {plan.label: plan for plan in plan_processes(topology, placement)}


def test_every_replica_is_a_process_and_comes_after_what_it_needs(plans: dict[str, ProcessPlan]) -> None:
    order = list(plans)

    assert order[:3] == ["head", "collector", "profiler"]
    assert sorted(order[3:]) == ["other", "policy", "weather@1", "weather@2", "weather_agent"]
    assert order[-1] == "weather_agent"
    assert {plans["weather@1"].name, plans["weather@2"].name} == {"weather"}


def test_own_services_get_their_ports_and_others_free_ones(plans: dict[str, ProcessPlan]) -> None:
    ports = {label: plan.port for label, plan in plans.items() if plan.port}

    assert ports == {"head": 1, "collector": 2, "profiler": 3}
    assert plans["collector"].port_option == "--collector-port"


def test_each_process_is_told_only_its_own_settings(plans: dict[str, ProcessPlan]) -> None:
    told = [label for label, plan in plans.items() if b"sk-hunter2" in dumps(plan.settings)]

    assert told == ["policy"]
    assert plans["policy"].settings["api_key"] == "sk-hunter2"
    assert plans["weather@1"].settings["session_idle_seconds"] == 60
    assert plans["weather_agent"].settings["name"] == "weather_agent"
    assert all(plan.settings["token"] == "t0k3n" for plan in plans.values())


def test_replicas_share_a_session_secret_that_no_other_service_knows(
    plans: dict[str, ProcessPlan], topology: Topology
) -> None:
    secrets = {label: plan.settings.get("session_secret") for label, plan in plans.items()}
    again = {plan.label: plan for plan in plan_processes(topology, Placement(token="t"))}

    assert secrets["weather@1"] == secrets["weather@2"]
    assert len({secrets[name] for name in ("weather@1", "other", "policy", "weather_agent")}) == 4
    assert secrets["head"] is None
    assert again["weather@1"].settings["session_secret"] != secrets["weather@1"]


def test_the_collector_knows_the_topology_and_the_directory_of_the_runs(
    plans: dict[str, ProcessPlan], topology: Topology, tmp_path: Path
) -> None:
    assert plans["collector"].settings["topology_digest"] == topology_digest(topology)
    assert plans["collector"].settings["data_dir"] == str(tmp_path / "runs")
    assert plans["profiler"].settings["data_dir"] == str(tmp_path / "runs")
    assert "data_dir" not in plans["head"].settings


def test_a_relative_directory_of_the_runs_is_one_of_the_current_folder(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    collector = plan_processes(topology, Placement(token="t"))[1]

    assert collector.settings["data_dir"] == str(tmp_path / "results")


def test_the_level_of_the_topology_wins_over_the_common_one(plans: dict[str, ProcessPlan]) -> None:
    assert (plans["other"].settings["log_level"], plans["policy"].settings["log_level"]) == ("DEBUG", "INFO")


def test_secrets_are_not_shown_when_a_plan_is(plans: dict[str, ProcessPlan]) -> None:
    assert "t0k3n" not in repr([Placement(token="t0k3n"), *plans.values()])


def test_own_services_can_be_left_out_or_be_others(topology: Topology) -> None:
    plans = plan_processes(topology, Placement(token="t"), own={"head": "my_module:create_app"})

    assert [(plan.kind, plan.use) for plan in plans[:1]] == [("head", "my_module:create_app")]
    assert "collector" not in [plan.kind for plan in plans]
