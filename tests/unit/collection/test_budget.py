import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.reader import read_rollouts
from rollmill.client.directory import StaticDirectory
from rollmill.client.service_client import ServiceClient
from rollmill.client.transport import Reply
from rollmill.collection.budget import used_up
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import tokens_used
from rollmill.contracts.runs import RunBudget, RunOptions, RunStatus
from rollmill.contracts.services import Instance
from rollmill.testing import FakeTransport
from rollmill.testing.transport import SentCall

TOKENS = 100


def answer(call: SentCall) -> Reply:
    """Every rollout uses `TOKENS` tokens; those of odd tasks called `fail` have no reward."""
    row = loads(call.body)
    if call.url.endswith("/aggregate_metrics"):
        return Reply(200, {}, dumps({"agent_metrics": {"n": len(row["verify_responses"])}}))
    used: JsonObject = {"response": {"usage": {"total_tokens": TOKENS}}}
    failing = row["responses_create_params"]["input"] == "fail"
    return Reply(200, {}, dumps({**row, **used, **({} if failing else {"reward": 1.0})}))


class GatedTransport(FakeTransport):
    """Lets rollouts wait until the gate opens; metrics pass. The run's time goes by when the gate is crowded.

    Args:
        crowd: rollouts that wait when the clock moves on to 60 seconds; it stands still before and after it.
    """

    def __init__(self, crowd: int) -> None:
        super().__init__(answer)
        self.gate = asyncio.Event()
        self.crowded = asyncio.Event()
        self.cancelled = 0
        self._crowd = crowd
        self._waiting = 0

    def clock(self) -> float:
        return 60.0 * self.crowded.is_set()

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        if url.endswith("/run"):
            await self._wait()
        return await super().send(method, url, headers=headers, body=body, timeout=timeout)

    async def _wait(self) -> None:
        self._waiting += 1
        if self._waiting == self._crowd:
            self.crowded.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def plan(folder: Path, words: list[str], **options: object) -> CollectionPlan:
    tasks = folder / "tasks.jsonl"
    rows = [{"responses_create_params": {"input": word}, "agent_ref": {"name": "a"}} for word in words]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CollectionPlan(tasks, folder / "x.jsonl", RunOptions.model_validate({"concurrency": 1, **options}))


async def collect(what: CollectionPlan, transport: GatedTransport | None = None) -> RunStatus:
    directory = StaticDirectory([Instance(name="a", instance="a", kind="agent", url="http://a.test")])
    collector = Collector(what, ServiceClient(transport or FakeTransport(answer), directory))
    if transport is not None:
        collector.stats.clock = transport.clock
    return await collector.run()


def larger(what: CollectionPlan, **budget: object) -> CollectionPlan:
    return replace(what, resume=True, options=what.options.model_copy(update=budget))


async def test_a_run_stops_at_its_tokens_and_goes_on_with_more_of_them(tmp_path: Path) -> None:
    what = plan(tmp_path, ["ok"] * 6, max_tokens_total=2 * TOKENS)
    status = await collect(what)
    assert (status.state, status.completed, status.tokens) == ("stopped", 2, 200)
    assert status.error == (
        "stopped by its budget: 200 of 200 tokens were used. Go on with --resume and a larger --max-tokens-total"
    )
    assert status.budget == RunBudget(max_tokens_total=200)

    again = await collect(replace(what, resume=True))
    assert (again.state, again.completed, again.tokens) == ("stopped", 2, 200)

    more = await collect(larger(what, max_tokens_total=5 * TOKENS))
    assert (more.state, more.completed, more.tokens) == ("stopped", 5, 500)
    rest = await collect(larger(what, max_tokens_total=None))
    assert (rest.state, rest.completed, rest.tokens, rest.error) == ("finished", 6, 600, "")
    assert sorted(row["_ng_rollout_index"] for row in read_rollouts(what.output)) == list(range(6))


async def test_a_stopped_run_says_so_in_its_manifest_and_has_the_metrics_of_what_is_there(tmp_path: Path) -> None:
    what = plan(tmp_path, ["ok"] * 6, max_tokens_total=2 * TOKENS)
    status = await collect(what)
    manifest = read_manifest(tmp_path / "x_manifest.json")
    assert manifest is not None
    assert (manifest.state, manifest.error, manifest.tokens) == ("stopped", status.error, 200)
    assert manifest.status().budget == RunBudget(max_tokens_total=200)
    metrics = json.loads((tmp_path / "x_aggregate_metrics.json").read_text())
    assert metrics[0]["agent_metrics"]["n"] == 2


async def test_a_run_stops_at_so_many_failed_rollouts_earlier_sessions_included(tmp_path: Path) -> None:
    what = plan(tmp_path, ["ok", "fail", "fail", "ok", "fail", "ok"], max_failures=2)
    status = await collect(what)
    assert (status.state, status.completed, status.failed, status.tokens) == ("stopped", 1, 2, 100)
    assert "2 of 2 rollouts failed" in status.error

    more = await collect(larger(what, max_failures=3))
    assert (more.state, more.failed) == ("stopped", 3)


async def test_a_limit_reached_with_the_last_rollout_leaves_a_finished_run(tmp_path: Path) -> None:
    status = await collect(plan(tmp_path, ["ok"] * 3, max_tokens_total=3 * TOKENS))
    assert (status.state, status.completed, status.error) == ("finished", 3, "")


async def test_at_the_end_of_its_time_what_is_in_flight_is_finished_within_the_grace(tmp_path: Path) -> None:
    transport = GatedTransport(crowd=2)
    what = plan(tmp_path, ["ok"] * 6, max_wall_seconds=0.01, stop_grace_seconds=30, concurrency=2)
    work = asyncio.create_task(collect(what, transport))
    await transport.crowded.wait()
    await asyncio.sleep(0.05)  # the watch's timer is due before this one
    transport.gate.set()
    status = await work
    assert (status.state, status.completed, transport.cancelled) == ("stopped", 2, 0)
    assert "60 of 0.01 seconds at work" in status.error
    assert status.wall_seconds == 60


async def test_what_outlives_the_grace_is_cancelled_without_a_failure_and_run_by_a_resume(tmp_path: Path) -> None:
    transport = GatedTransport(crowd=1)
    what = plan(tmp_path, ["ok"] * 3, max_wall_seconds=0.01, stop_grace_seconds=0, max_attempts=1)
    stopped = await collect(what, transport)
    assert (stopped.state, stopped.completed, stopped.failed_attempts) == ("stopped", 0, 0)
    assert transport.cancelled == 1
    assert (tmp_path / "x_failures.jsonl").read_bytes() == b""

    status = await collect(larger(what, max_wall_seconds=None))
    assert (status.state, status.completed, status.failed) == ("finished", 3, 0)
    assert status.wall_seconds > stopped.wall_seconds


@given(st.integers(0, 20), st.floats(0, 20), st.integers(0, 20), st.integers(1, 20), st.integers(1, 20))
@settings(max_examples=60)
def test_a_budget_is_used_up_when_one_of_its_limits_is_reached(
    tokens: int, wall: float, failures: int, limit: int, other: int
) -> None:
    spent = {"tokens": tokens, "wall_seconds": wall, "failures": failures}
    budget = RunBudget(max_tokens_total=limit, max_failures=other, max_wall_seconds=limit)
    reached = tokens >= limit or wall >= limit or failures >= other
    assert bool(used_up(budget, **spent)) == reached  # type: ignore[arg-type]
    assert used_up(RunBudget(), **spent) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"total_tokens": 7, "input_tokens": 99}, 7),
        ({"input_tokens": 3, "output_tokens": 4}, 7),
        ({"total_tokens": None, "output_tokens": 4}, 4),
        ({"total_tokens": "many"}, 0),
        ({"total_tokens": -5}, 0),
        (None, 0),
        ([], 0),
    ],
)
def test_tokens_are_those_that_the_usage_tells(usage: object, tokens: int) -> None:
    assert tokens_used({"response": {"usage": usage}}) == tokens
    assert tokens_used({"response": "text"}) == tokens_used({}) == 0
