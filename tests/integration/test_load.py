"""Thousands of rollouts in flight, over real services on loopback; bounded in number, and in time by the run's budget."""

import resource
from typing import TYPE_CHECKING

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.reader import read_jsonl, read_rollouts
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rows import row_key

if TYPE_CHECKING:
    from tests.integration.conftest import Workplace

TASKS, REPEATS, IN_FLIGHT = 50, 80, 2048
TOPOLOGY = """
services:
  policy: {kind: model, use: scripted, settings: {delay_seconds: 0.5}}
  weather: {kind: resources, use: weather}
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
"""


def most_in_flight(timings: list[JsonObject]) -> int:
    """Return the most rollouts that were at work at one moment."""
    moments = [(timing["started_at"], 1) for timing in timings]
    moments += [(timing["started_at"] + timing["seconds"], -1) for timing in timings]
    at_work = most = 0
    for _, change in sorted(moments):
        at_work += change
        most = max(most, at_work)
    return most


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 4 * IN_FLIGHT, reason="this machine allows too few open files"
)
def test_thousands_in_flight_lose_and_repeat_nothing(workplace: "Workplace") -> None:
    (workplace.path / "t.yaml").write_text(TOPOLOGY)
    agent = {"name": "weather_agent"}
    tasks = [
        {"responses_create_params": {"input": f"What is the weather in city {number}?"}, "agent_ref": agent}
        for number in range(TASKS)
    ]
    (workplace.path / "tasks.jsonl").write_bytes(b"".join(dumps(task) + b"\n" for task in tasks))
    workplace.up()

    options = ("--num-repeats", str(REPEATS), "--concurrency", str(IN_FLIGHT), "--max-wall", "75")
    done = workplace.run("collect", "-c", "t.yaml", "--input", "tasks.jsonl", "--output", "x.jsonl", *options)

    files = RunFiles(workplace.path / "x.jsonl")
    rows = list(read_rollouts(files.rollouts))
    assert (done.returncode, list(read_jsonl(files.failures))) == (0, []), done.stderr
    assert len({row_key(row) for row in rows}) == len(rows) == TASKS * REPEATS
    assert most_in_flight([row["_rollmill"] for row in rows]) > IN_FLIGHT / 2
