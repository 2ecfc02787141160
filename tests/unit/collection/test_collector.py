import asyncio
import gc
import json
import os
import random
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.reader import read_rollouts
from rollmill.artifacts.writer import JsonlWriter
from rollmill.client.directory import StaticDirectory
from rollmill.client.retry import RetryPolicy
from rollmill.client.service_client import ServiceClient
from rollmill.client.transport import Reply, StreamReply
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.collection.prompts import PromptConfig
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import RowKey, row_key
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.contracts.services import Instance
from rollmill.errors import ConflictError, InputError, RollmillError, ServiceNotFoundError, UpstreamError

Judge = Callable[[JsonObject], JsonObject]
"""From row to the fields that the agent adds to it; may raise what the call ends in."""


def graded(row: JsonObject) -> JsonObject:
    return {"reward": float(row["_ng_task_index"] % 2)}


class FakeAgents:
    """A transport whose agents grade rows with a function and take some turns of the event loop for it."""

    def __init__(self, judge: Judge = graded, *, turns: Callable[[], int] = lambda: 1) -> None:
        self.judge = judge
        self._turns = turns
        self.runs: Counter[RowKey] = Counter()
        self.idempotency_keys: list[str] = []
        self.running = 0
        self.on_run: Callable[[], None] = lambda: None
        self.metrics: RollmillError | JsonObject = {"key_metrics": {"k": 1}, "group_level_metrics": []}

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        if url.endswith("/aggregate_metrics"):
            if isinstance(self.metrics, RollmillError):
                raise self.metrics
            return Reply(200, {}, dumps({"agent_metrics": {"n": len(loads(body)["verify_responses"])}, **self.metrics}))
        row = loads(body)
        self.runs[row_key(row)] += 1
        self.idempotency_keys.append(headers["idempotency-key"])
        self.running += 1
        try:
            self.on_run()
            for _ in range(self._turns()):
                await asyncio.sleep(0)
            return Reply(200, {}, dumps({**row, **self.judge(row)}))
        finally:
            self.running -= 1

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamReply]:
        raise NotImplementedError
        yield

    async def aclose(self) -> None:
        pass

    def client(self, *names: str) -> ServiceClient:
        instances = [Instance(name=n, instance=n, kind="agent", url=f"http://{n}.test") for n in names or ("a",)]
        return ServiceClient(self, StaticDirectory(instances), policy=RetryPolicy(max_attempts=1))


def write_tasks(folder: Path, number: int, agents: str = "a") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tasks.jsonl"
    rows: list[JsonObject] = [
        {"responses_create_params": {"input": f"q{n}"}, "agent_ref": {"name": agents[n % len(agents)]}}
        for n in range(number)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def plan(folder: Path, tasks: int = 4, repeats: int = 2, **options: object) -> CollectionPlan:
    chosen = RunOptions.model_validate({"num_repeats": repeats, "concurrency": 4, **options})
    return CollectionPlan(write_tasks(folder, tasks), folder / "out" / "x.jsonl", chosen)


async def collect(what: CollectionPlan, agents: FakeAgents | None = None) -> tuple[Collector, RunStatus]:
    collector = Collector(what, (agents or FakeAgents()).client())
    return collector, await collector.run()


def rows_of(path: Path) -> list[JsonObject]:
    return list(read_rollouts(path))


def manifest_of(collector: Collector) -> Manifest:
    manifest = read_manifest(collector.files.manifest)
    assert manifest is not None
    return manifest


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_a_run_leaves_its_files_complete(tmp_path: Path) -> None:
    collector, status = await collect(plan(tmp_path))
    files = collector.files

    assert sorted(row_key(row) for row in rows_of(files.rollouts)) == [RowKey(t, r) for t in range(4) for r in range(2)]
    assert [row_key(row) for row in rows_of(files.inputs)] == [RowKey(t, r) for t in range(4) for r in range(2)]
    assert files.failures.read_bytes() == b""
    assert json.loads(files.aggregate_metrics.read_text()) == [
        {"agent_ref": {"name": "a"}, "agent_metrics": {"n": 8}, "key_metrics": {"k": 1}, "group_level_metrics": []}
    ]
    assert (status.state, status.expected, status.completed, status.failed) == ("finished", 8, 8, 0)
    assert (status.mean_reward, status.in_flight, status.concurrency) == (0.5, 0, 4)


async def test_the_manifest_says_what_the_run_was_and_how_far_it_got(tmp_path: Path) -> None:
    def judge(row: JsonObject) -> JsonObject:
        return graded(row) if row["_ng_task_index"] else {}

    what = replace(plan(tmp_path), run_id="my-run", prompt=None, topology_digest="t")
    collector, _ = await collect(what, FakeAgents(judge))
    manifest = manifest_of(collector)

    assert (manifest.run_id, manifest.state, manifest.input_path) == ("my-run", "finished", str(what.input))
    assert (manifest.counts.expected, manifest.counts.completed, manifest.counts.failed) == (8, 6, 2)
    assert manifest.digests.topology == "t"
    assert manifest.mean_reward == pytest.approx(2 / 3)


async def test_failures_are_data_with_class_and_boundary_and_do_not_end_the_run(tmp_path: Path) -> None:
    def judge(row: JsonObject) -> JsonObject:
        match row["_ng_task_index"]:
            case 0:
                return {}
            case 1:
                raise UpstreamError("no answer", boundary="model", upstream_type="overloaded", retryable=True)
            case 2:
                return {"_ng_failure_class": "gone", "_ng_failure_terminal": True}
        return {"reward": 1.0}

    agents = FakeAgents(judge)
    collector, status = await collect(plan(tmp_path, repeats=1, max_attempts=2), agents)
    failures = sorted(
        (row["_ng_task_index"], row["_ng_attempt_index"], row["_ng_failure_class"], row["_ng_failure_terminal"])
        for row in rows_of(collector.files.failures)
    )
    boundaries = {row["_ng_task_index"]: row["failure"]["boundary"] for row in rows_of(collector.files.failures)}

    assert failures == [
        (0, 0, "invalid-reward", False),
        (1, 0, "overloaded", False),
        (1, 1, "overloaded", False),
        (2, 0, "gone", True),
    ]
    assert boundaries == {0: "agent", 1: "model", 2: "agent"}
    assert [row["_ng_task_index"] for row in rows_of(collector.files.rollouts)] == [3]
    assert (status.completed, status.failed, status.failed_attempts) == (1, 3, 4)
    assert sum(status.failures.values()) == 4


async def test_each_attempt_has_an_idempotency_key_of_its_own(tmp_path: Path) -> None:
    def judge(row: JsonObject) -> JsonObject:
        if "_ng_attempt_index" not in row:
            raise UpstreamError("once", retryable=True)
        return {"reward": 1.0}

    agents = FakeAgents(judge)
    collector, _ = await collect(replace(plan(tmp_path, tasks=1, repeats=2), run_id="r"), agents)

    assert sorted(agents.idempotency_keys) == ["r/0:0/0", "r/0:0/1", "r/0:1/0", "r/0:1/1"]
    assert [row["_ng_attempt_index"] for row in rows_of(collector.files.rollouts)] == [1, 1]


async def cancelled_after(what: CollectionPlan, agents: FakeAgents, runs: int, mark: str = "") -> Collector:
    """Run until the agents were asked so often, then cancel."""
    collector = Collector(what, agents.client())
    task = asyncio.create_task(collector.run())
    left = [runs]

    def count_down() -> None:
        left[0] -= 1
        if left[0] == 0:
            if mark == "cancelled":
                collector.stats.state = "cancelled"
            task.cancel()

    agents.on_run = count_down
    try:
        with pytest.raises(asyncio.CancelledError):
            await task
    finally:
        agents.on_run = lambda: None
    return collector


def untimed(path: Path) -> list[bytes]:
    """The lines without the note of when they came about."""
    return sorted(line.rpartition(b',"_rollmill":')[0] for line in path.read_bytes().splitlines())


@pytest.mark.parametrize("seed", range(8))
async def test_cancellations_and_resumes_end_as_an_undisturbed_run_does(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    agents = FakeAgents(turns=lambda: rng.randrange(6))
    what = plan(tmp_path, tasks=15, repeats=3)
    undisturbed, _ = await collect(replace(what, output=tmp_path / "undisturbed" / "x.jsonl"))
    run_ids = set()
    for runs in [rng.randint(1, 12) for _ in range(3)]:
        stopped = manifest_of(await cancelled_after(replace(what, resume=True), agents, runs))
        assert stopped.state == "interrupted"
        run_ids.add(stopped.run_id)
    resumed, status = await collect(replace(what, resume=True), agents)

    assert untimed(resumed.files.rollouts) == untimed(undisturbed.files.rollouts)
    assert resumed.files.failures.read_bytes() == b""
    assert resumed.files.inputs.read_bytes() == undisturbed.files.inputs.read_bytes()
    assert resumed.files.aggregate_metrics.read_bytes() == undisturbed.files.aggregate_metrics.read_bytes()
    assert (status.completed, status.failed, status.expected) == (45, 0, 45)
    assert run_ids == {resumed.run_id}
    assert agents.running == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16, 32])
async def test_a_cancellation_while_the_run_starts_leaves_something_to_resume(tmp_path: Path, turns: int) -> None:
    what = replace(plan(tmp_path), resume=True)
    task = asyncio.create_task(Collector(what, FakeAgents(turns=lambda: 1000).client()).run())
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _, status = await collect(what)

    assert (status.state, status.completed) == ("finished", 8)


async def test_a_run_that_was_told_to_stop_is_cancelled_and_not_interrupted(tmp_path: Path) -> None:
    collector = await cancelled_after(plan(tmp_path), FakeAgents(turns=lambda: 50), 3, mark="cancelled")

    assert manifest_of(collector).state == collector.status().state == "cancelled"
    assert collector.status().in_flight == 0


async def test_a_torn_last_line_is_dropped_and_its_rollout_runs_again(tmp_path: Path) -> None:
    what = plan(tmp_path)
    collector, _ = await collect(what)
    for path in (collector.files.rollouts, collector.files.inputs):
        path.write_bytes(path.read_bytes()[:-10])
    torn = Counter(map(row_key, rows_of(collector.files.rollouts)))
    agents = FakeAgents()
    await collect(replace(what, resume=True), agents)

    assert len(torn) == 7
    assert sum(agents.runs.values()) == 1
    assert len({row_key(row) for row in rows_of(collector.files.rollouts)}) == 8
    assert [row_key(row) for row in rows_of(collector.files.inputs)] == [
        RowKey(t, r) for t in range(4) for r in range(2)
    ]


async def test_a_resume_retries_what_may_still_succeed_and_nothing_else(tmp_path: Path) -> None:
    fields: dict[int, JsonObject] = {
        0: {"_ng_failure_class": "crash"},
        1: {"_ng_failure_class": "hopeless", "_ng_failure_terminal": True},
        2: {"_ng_no_persist": True},
        3: {"reward": 1.0},
    }
    agents = FakeAgents(lambda row: fields[row["_ng_task_index"]])
    what = plan(tmp_path, repeats=1, max_attempts=3)
    for _ in range(4):
        await collect(replace(what, resume=True), agents)
    collector, status = await collect(replace(what, resume=True), agents)

    assert {key.task: number for key, number in agents.runs.items()} == {0: 3, 1: 1, 2: 5, 3: 1}
    failures = Counter(row["_ng_task_index"] for row in rows_of(collector.files.failures))
    assert failures == {0: 3, 1: 1}
    assert [row["_ng_task_index"] for row in rows_of(collector.files.rollouts)] == [3]
    assert (status.completed, status.failed) == (1, 3)


async def test_a_resume_of_a_finished_run_runs_nothing_and_keeps_everything(tmp_path: Path) -> None:
    what = plan(tmp_path)
    first, before = await collect(what)
    kept = first.files.rollouts.read_bytes()
    agents = FakeAgents()
    second, after = await collect(replace(what, resume=True), agents)

    assert not agents.runs
    assert second.files.rollouts.read_bytes() == kept
    assert (after.run_id, after.created_at, after.completed) == (before.run_id, before.created_at, 8)
    assert after.mean_reward == before.mean_reward


async def test_a_resume_of_another_run_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    what = plan(tmp_path)
    await cancelled_after(what, FakeAgents(turns=lambda: 5), 4)
    others = {
        "request parameters": replace(what, options=what.options.model_copy(update={"temperature": 0.5})),
        "repeats": replace(what, options=what.options.model_copy(update={"num_repeats": 3})),
        "the prompt config": replace(what, prompt=PromptConfig(user="x")),
        "the task file": what,
    }
    for words, other in others.items():
        if words == "the task file":
            what.input.write_text(what.input.read_text().replace("q0", "changed"))
        elif words == "the prompt config":
            what.input.write_text('{"agent_ref":{"name":"a"}}\n')
        before = snapshot(tmp_path)
        with pytest.raises(ConflictError, match=f"cannot resume, this is another run: .*{words}"):
            await collect(replace(other, resume=True))
        assert snapshot(tmp_path) == before
        write_tasks(tmp_path, 4)


async def test_options_that_do_not_change_the_rollouts_may_change_on_a_resume(tmp_path: Path) -> None:
    what = plan(tmp_path)
    await cancelled_after(what, FakeAgents(turns=lambda: 5), 4)
    changed = what.options.model_copy(update={"concurrency": 9, "max_attempts": 1, "timeout_seconds": 5.0})
    _, status = await collect(replace(what, options=changed, resume=True))

    assert (status.state, status.concurrency) == ("finished", 9)


async def test_an_output_that_exists_is_refused_and_kept(tmp_path: Path) -> None:
    what = plan(tmp_path)
    await collect(what)
    before = snapshot(tmp_path)
    with pytest.raises(ConflictError, match=r"--resume.*--overwrite"):
        await collect(what)

    assert snapshot(tmp_path) == before


async def test_rollouts_without_a_manifest_are_not_resumed(tmp_path: Path) -> None:
    what = plan(tmp_path)
    collector, _ = await collect(what)
    collector.files.manifest.unlink()
    with pytest.raises(ConflictError, match=r"x_manifest\.json is missing"):
        await collect(replace(what, resume=True))


async def test_overwrite_starts_afresh(tmp_path: Path) -> None:
    what = plan(tmp_path)
    first, _ = await collect(what)
    first.files.reward_profiling.write_text("old\n")
    second, status = await collect(
        replace(what, options=what.options.model_copy(update={"num_repeats": 1}), overwrite=True)
    )

    assert status.run_id != first.run_id
    assert len(rows_of(second.files.rollouts)) == len(rows_of(second.files.inputs)) == 4
    assert not first.files.reward_profiling.exists()


async def test_bad_tasks_are_refused_before_an_overwrite_deletes_anything(tmp_path: Path) -> None:
    what = plan(tmp_path)
    await collect(what)
    what.input.write_text('{"agent_ref": {"name": "a"}}\n{"oops": \n')
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=r"tasks\.jsonl:2"):
        await collect(replace(what, overwrite=True))

    assert snapshot(tmp_path) == before


async def test_a_run_never_deletes_its_own_input(tmp_path: Path) -> None:
    collector, _ = await collect(plan(tmp_path))
    before = snapshot(tmp_path)
    again = CollectionPlan(collector.files.inputs, collector.files.rollouts, overwrite=True)
    with pytest.raises(InputError, match="one of the files that the run writes"):
        await collect(again)

    assert snapshot(tmp_path) == before


async def test_an_agent_that_is_not_there_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    what = replace(plan(tmp_path), input=write_tasks(tmp_path, 4, agents="abc"))
    with pytest.raises(ServiceNotFoundError, match="'b', 'c'"):
        await collect(what)

    assert not what.output.parent.exists()


@pytest.mark.parametrize("change", [{"resume": True}, {"overwrite": True}])
async def test_a_second_collector_on_the_same_output_is_refused_and_harms_nothing(
    tmp_path: Path, change: dict[str, bool]
) -> None:
    first_agents, what = FakeAgents(), plan(tmp_path, tasks=20)
    settled = asyncio.Event()
    first = Collector(what, first_agents.client(), on_commit=settled.set)
    first_agents.on_run = first.pause
    running = asyncio.create_task(first.run())
    await settled.wait()
    first_agents.on_run = lambda: None
    second_agents = FakeAgents()
    with pytest.raises(ConflictError, match=rf"process {os.getpid()} on \S+ is writing this file"):
        await collect(replace(what, resume=change.get("resume", False), overwrite="overwrite" in change), second_agents)
    assert manifest_of(first).state in ("running", "paused")
    first.pause(False)
    status = await running

    assert not second_agents.runs
    assert status.completed == len(rows_of(first.files.rollouts)) == 40


async def test_a_run_that_another_process_finished_meanwhile_is_not_run_twice(tmp_path: Path) -> None:
    what = replace(plan(tmp_path), resume=True)
    late_agents = FakeAgents()
    late = Collector(what, late_agents.client())
    await late.prepare()
    first, _ = await collect(what)
    before = snapshot(tmp_path)
    with pytest.raises(ConflictError, match="meanwhile"):
        await late.run()

    assert not late_agents.runs
    assert snapshot(tmp_path) == before
    assert manifest_of(first).state == "finished"


async def test_metrics_that_cannot_be_computed_fail_the_run_and_a_resume_repairs_it(tmp_path: Path) -> None:
    agents, what = FakeAgents(), plan(tmp_path)
    agents.metrics = UpstreamError("broken verifier", retryable=False)
    collector = Collector(what, agents.client())
    with pytest.raises(UpstreamError, match="metrics of a: broken verifier"):
        await collector.run()
    failed = manifest_of(collector)
    _, status = await collect(replace(what, resume=True))

    assert (failed.state, failed.error, failed.counts.completed) == ("failed", "metrics of a: broken verifier", 8)
    assert (status.state, status.error) == ("finished", "")


async def test_without_aggregation_no_metrics_are_written(tmp_path: Path) -> None:
    collector, _ = await collect(plan(tmp_path, aggregate=False))

    assert not collector.files.aggregate_metrics.exists()


async def test_a_file_that_somebody_else_holds_fails_the_run_without_a_trace(tmp_path: Path) -> None:
    what = plan(tmp_path)
    async with JsonlWriter(what.output):
        with pytest.raises(ConflictError):
            await collect(what)

    assert not Collector(what, FakeAgents().client()).files.manifest.exists()


async def test_a_paused_run_says_so_and_goes_on(tmp_path: Path) -> None:
    agents, settled = FakeAgents(), asyncio.Event()
    collector = Collector(plan(tmp_path), agents.client(), on_commit=settled.set)
    agents.on_run = collector.pause
    task = asyncio.create_task(collector.run())
    await settled.wait()
    agents.on_run = lambda: None
    assert collector.status().state == "paused"
    assert not task.done()
    collector.set_concurrency(1)
    collector.pause(False)
    status = await task

    assert (status.state, status.completed, status.concurrency) == ("finished", 8, 1)


async def memory_of(folder: Path, repeats: int) -> tuple[int, int]:
    """Bytes that a collector holds when it has run, and the most it held meanwhile."""
    what = plan(folder, tasks=100, repeats=repeats, concurrency=64, aggregate=False)
    collector = Collector(what, ForgetfulAgents().client())
    gc.collect()
    tracemalloc.start()
    try:
        status = await collector.run()
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert status.completed == 100 * repeats
    return held, peak


class ForgetfulAgents(FakeAgents):
    """Grades at once and remembers nothing."""

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        await asyncio.sleep(0)
        return Reply(200, {}, body[:-1] + b',"reward":1.0}')


async def test_memory_does_not_grow_with_the_number_of_rollouts(tmp_path: Path) -> None:
    await memory_of(tmp_path / "warm", 1)
    held_by_few, peak_of_few = await memory_of(tmp_path / "few", 20)
    held_by_many, peak_of_many = await memory_of(tmp_path / "many", 120)

    assert held_by_many - held_by_few < 100_000
    assert peak_of_many - peak_of_few < 10_000_000  # a slow disk fills the buffers; 10,000 kept rows are 20 MB and more
