"""Runs each benchmark at toy size, so that none rots. The numbers of so small a run mean nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollmill.contracts.json import JsonObject

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(name: str, *options: str) -> str:
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *options], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def results_of(path: Path, *options: str) -> dict[str, list[JsonObject]]:
    run("collect.py", *options, "--json", str(path))
    found: dict[str, list[JsonObject]] = json.loads(path.read_text())["results"]
    return found


def test_the_cpu_per_rollout_is_told_by_mode_beside_its_floor(tmp_path: Path) -> None:
    found = results_of(tmp_path / "x.json", "cpu", "--rollouts", "50", "--rounds", "1", "--concurrency", "8")

    assert [cost["mode"] for cost in found["cpu"]] == ["embedded", "HTTP"]
    assert all(cost["floor_ms"] > 0 for cost in found["cpu"])


def test_as_many_rollouts_are_in_flight_as_asked_for(tmp_path: Path) -> None:
    found = results_of(tmp_path / "x.json", "delay", "--delay-concurrency", "20", "--delay-rollouts", "40")

    assert found["delay"][0]["rollouts"] == 40
    assert 10 <= found["delay"][0]["most_in_flight"] <= 20
    assert 0 < found["delay"][0]["rate"] <= found["delay"][0]["ideal_rate"]


def test_the_memory_is_told_for_repeated_and_for_distinct_tasks(tmp_path: Path) -> None:
    found = results_of(tmp_path / "x.json", "memory", "--memory", "400")

    assert [(one["tasks"], one["rollouts"]) for one in found["memory"]] == [(50, 400), (400, 400)]


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(AssertionError, match="the parts are cpu, delay, flood, memory"):
        run("collect.py", "speed")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("hot_routes.py", ["--calls", "20"], "edge, then FastAPI"),
        ("append.py", ["--lines", "50", "--rounds", "1"], "| write alone"),
        ("clients.py", ["--calls", "50", "--rounds", "1", "--in-flight", "4"], "| ours"),
        ("startup.py", ["--runs", "1"], "resident memory"),
        ("profiles.py", ["--tasks", "20", "--repeats", "2"], "classic profile"),
    ],
)
def test_the_other_benchmarks_print_their_tables(name: str, options: list[str], said: str) -> None:
    assert said in run(name, *options)
