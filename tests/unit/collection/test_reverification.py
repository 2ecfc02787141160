import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Digests, Manifest, Scoring, read_manifest
from rollmill.artifacts.reader import read_jsonl
from rollmill.client.directory import StaticDirectory
from rollmill.client.retry import RetryPolicy
from rollmill.client.service_client import ServiceClient
from rollmill.client.transport import Reply, StreamReply
from rollmill.collection.regrading import Changes
from rollmill.collection.reverification import Reverification, ReverifyPlan
from rollmill.collection.stored_rollouts import find_stored
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.contracts.services import Instance
from rollmill.errors import (
    ConflictError,
    InputError,
    NotFoundError,
    OverloadedError,
    RollmillError,
    ServiceNotFoundError,
    to_problem,
)

Judge = Callable[[Row], JsonObject]
"""From row to what the verifier adds; may raise what the call ends in."""


def row(task: int, index: int = 0, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def by_answer(asked: Row) -> JsonObject:
    return {"reward": float(asked["response"]["answer"] == asked["expected"]), "verdict": "new"}


class FakeVerifiers:
    """A transport behind which two resources servers, `words` and `sums`, grade with a function."""

    def __init__(self, judge: Judge = by_answer, *, mode: JsonValue = "stateless") -> None:
        self.judge = judge
        self.mode = mode
        self.calls: Counter[str] = Counter()
        self.graded: list[Row] = []
        self.sessions: set[str] = set()
        self.turns = 0
        self.asked = asyncio.Event()

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        path = url.rpartition("/")[2]
        self.calls[path] += 1
        try:
            return Reply(200, self._headers(path, headers), dumps(await self._answer(path, body)))
        except RollmillError as error:
            return Reply(error.status, {}, dumps(to_problem(error)))

    async def _answer(self, path: str, body: bytes) -> JsonValue:
        if path == "reverify_mode":
            if isinstance(self.mode, RollmillError):
                raise self.mode
            return self.mode
        if path == "seed_session":
            assert "response" not in loads(body)
            return {}
        if path == "close_session":
            return {}
        self.asked.set()
        for _ in range(self.turns):
            await asyncio.sleep(0)
        asked = loads(body)
        self.graded.append(asked)
        return {**asked, **self.judge(asked)}

    def _headers(self, path: str, headers: Mapping[str, str]) -> dict[str, str]:
        if path == "seed_session":
            self.sessions.add(f"s{len(self.sessions)}")
            return {"x-rollmill-session": f"s{len(self.sessions) - 1}"}
        if path == "verify" and "x-rollmill-session" in headers:
            self.sessions.remove(headers["x-rollmill-session"])
            return {"x-rollmill-close-session": "1"}
        return {}

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamReply]:
        raise NotImplementedError
        yield

    async def aclose(self) -> None:
        pass

    def client(self) -> ServiceClient:
        told: dict[str, JsonObject] = {
            "solver": {"resources": "words"},
            "adder": {"resources": "sums"},
            "words": {
                "custom_metrics": False,
                "verifier": {"name": "m:Words", "version": "2"},
                "score_fields": ["reward", "style"],
            },
            "sums": {"custom_metrics": False},
        }
        services = [
            Instance(
                name=name,
                instance=name,
                kind="agent" if "resources" in capabilities else "resources",
                url=f"http://{name}.test",
                capabilities=capabilities,
            )
            for name, capabilities in told.items()
        ]
        return ServiceClient(self, StaticDirectory(services), policy=RetryPolicy(max_attempts=1))


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


@pytest.fixture
def source(tmp_path: Path) -> RunFiles:
    """Four tasks, answered 0 to 3, of which the old verifier liked 0 and 1; the new one wants even answers."""
    files = RunFiles.at(tmp_path / "old" / "x.jsonl")
    inputs = [row(task, question=f"q{task}", expected=task if task % 2 == 0 else None) for task in range(4)]
    write(files.inputs, inputs)
    write(
        files.rollouts,
        [
            {**entry, "expected": "spoilt", "response": {"answer": task}, "reward": float(task < 2), "verdict": "old"}
            for task, entry in reversed(list(enumerate(inputs)))
        ],
    )
    Manifest(run_id="old", state="finished", input_path="t.jsonl", digests=Digests(input="i", overrides="o")).write(
        files.manifest
    )
    return files


def plan(source: RunFiles, **how: object) -> ReverifyPlan:
    made = ReverifyPlan(source.rollouts, source.inputs, source.rollouts.parents[1] / "new" / "y.jsonl")
    return replace(made, **how)  # type: ignore[arg-type]


async def regrade(what: ReverifyPlan, verifiers: FakeVerifiers | None = None) -> Reverification:
    run = Reverification(what, (verifiers or FakeVerifiers()).client())
    await run.run()
    return run


def rewards(files: RunFiles) -> dict[int, float]:
    return {entry["_ng_task_index"]: entry["reward"] for entry in read_jsonl(files.rollouts)}


def manifest_of(files: RunFiles) -> Manifest:
    manifest = read_manifest(files.manifest)
    assert manifest is not None
    return manifest


async def test_stored_rollouts_are_graded_again_and_the_changes_are_counted(source: RunFiles) -> None:
    run = await regrade(plan(source))

    assert rewards(run.files) == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    assert run.changes == Changes(compared=4, up=1, down=1, flips=2)
    assert run.changes.flip_rate == 0.5
    status = run.status()
    assert (status.state, status.expected, status.completed, status.failed) == ("finished", 4, 4, 0)
    assert run.files.failures.read_bytes() == b""
    assert loads(run.files.aggregate_metrics.read_bytes())[0]["agent_metrics"]["mean/reward"] == 0.5


async def test_the_verifier_sees_the_input_row_and_the_response_but_no_old_verdict(source: RunFiles) -> None:
    stored = list(read_jsonl(source.rollouts))
    write(source.rollouts, [{**entry, "_ng_attempt_index": 1, "_rollmill": {"seconds": 2.0}} for entry in stored])
    verifiers = FakeVerifiers()

    run = await regrade(plan(source), verifiers)

    kept = {"_ng_task_index", "_ng_rollout_index", "agent_ref", "question", "expected", "response"}
    assert set(verifiers.graded[0]) == kept | {"_ng_attempt_index", "_rollmill"}
    assert all(asked["expected"] != "spoilt" for asked in verifiers.graded)
    assert {entry["verdict"] for entry in read_jsonl(run.files.rollouts)} == {"new"}
    assert {entry["_rollmill"]["seconds"] for entry in read_jsonl(run.files.rollouts)} == {2.0}


async def test_the_output_is_a_run_of_its_own_that_says_where_it_comes_from(source: RunFiles) -> None:
    run = await regrade(plan(source))

    manifest = manifest_of(run.files)
    assert (manifest.state, manifest.counts.completed, manifest.mean_reward) == ("finished", 4, 0.5)
    assert (manifest.digests.input, manifest.input_path) == ("i", "t.jsonl")
    assert manifest.reverified is not None
    assert (manifest.reverified.run_id, manifest.reverified.path) == ("old", str(source.rollouts))
    assert len(manifest.reverified.rollouts) == len(manifest.reverified.inputs) == 64
    assert (manifest.verifiers["solver"].name, manifest.verifiers["solver"].resources) == ("m:Words", "words")
    assert manifest.scoring["solver"] == Scoring(score_fields=["reward", "style"])
    assert run.files.inputs.read_bytes() == source.inputs.read_bytes()


@pytest.mark.parametrize("mode", ["unknown", "unsupported", "nonsense", 5, NotFoundError("no such route")])
async def test_a_verifier_that_promises_nothing_is_refused(source: RunFiles, mode: JsonValue) -> None:
    verifiers = FakeVerifiers(mode=mode)

    with pytest.raises(InputError, match=r"words \(of solver\) says .*--force"):
        await regrade(plan(source), verifiers)

    assert verifiers.calls["verify"] == 0
    assert not (source.rollouts.parents[1] / "new").exists()


@pytest.mark.parametrize("mode", ["unknown", "unsupported"])
async def test_forced_it_grades_in_fresh_sessions_into_a_file_that_says_unsafe(source: RunFiles, mode: str) -> None:
    verifiers = FakeVerifiers(mode=mode)

    run = await regrade(plan(source, force=True), verifiers)

    assert run.files.rollouts.name == "unsafe_y.jsonl"
    assert run.files.manifest.name == "unsafe_y_manifest.json"
    assert rewards(run.files) == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    assert verifiers.calls["seed_session"] == verifiers.calls["verify"] == 4
    assert verifiers.sessions == set()


async def test_force_changes_nothing_where_it_is_not_needed(source: RunFiles) -> None:
    assert (await regrade(plan(source, force=True))).files.rollouts.name == "y.jsonl"


@pytest.mark.parametrize("mode", ["stateless", "unknown"])
async def test_what_cannot_be_graded_is_a_failure_of_the_resources_and_ends_nothing(
    source: RunFiles, mode: str
) -> None:
    def judge(asked: Row) -> JsonObject:
        match asked["_ng_task_index"]:
            case 0:
                raise InputError("no expected answer")
            case 1:
                return {"reward": "good"}
            case 2:
                return {"_ng_rollout_index": 7, "reward": 1.0}
        return {"reward": 1.0}

    run = await regrade(plan(source, force=True), FakeVerifiers(judge, mode=mode))

    failures = {entry["_ng_task_index"]: entry["failure"] for entry in read_jsonl(run.files.failures)}
    assert {task: (failure["boundary"], failure["type"]) for task, failure in failures.items()} == {
        0: ("resources", "invalid-request"),
        1: ("resources", "invalid-reward"),
        2: ("resources", "wrong-row"),
    }
    assert rewards(run.files) == {3: 1.0}
    assert (run.status().failed, run.changes.compared) == (3, 1)
    assert manifest_of(run.files).counts.failed == 3


async def test_a_busy_verifier_is_asked_again(source: RunFiles) -> None:
    asked: Counter[int] = Counter()

    def judge(row: Row) -> JsonObject:
        asked[row["_ng_task_index"]] += 1
        if asked[row["_ng_task_index"]] == 1:
            raise OverloadedError("busy")
        return {"reward": 1.0}

    run = await regrade(plan(source), FakeVerifiers(judge))

    assert (run.status().completed, run.status().failed_attempts) == (4, 4)


async def test_a_resume_grades_only_what_is_missing_and_what_failed(source: RunFiles) -> None:
    broken = FakeVerifiers(lambda asked: by_answer(asked) if asked["expected"] is not None else {})
    first = await regrade(plan(source), broken)
    assert (first.status().completed, first.status().failed) == (2, 2)
    verifiers = FakeVerifiers()

    second = await regrade(plan(source, resume=True), verifiers)

    assert sorted(asked["_ng_task_index"] for asked in verifiers.graded) == [1, 3]
    assert rewards(second.files) == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}
    assert second.changes == Changes(compared=4, up=1, down=1, flips=2)
    assert (second.status().completed, second.status().failed) == (4, 0)
    assert manifest_of(second.files).run_id == manifest_of(first.files).run_id == second.status().run_id


async def test_a_run_that_was_stopped_is_gone_on_with(source: RunFiles) -> None:
    verifiers = FakeVerifiers()
    verifiers.turns = 10_000
    run = Reverification(plan(source, concurrency=2), verifiers.client())
    await run.prepare()
    work = asyncio.create_task(run.run())
    await verifiers.asked.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work

    assert manifest_of(run.files).state == "interrupted"
    assert rewards((await regrade(plan(source, resume=True))).files) == {0: 1.0, 1: 0.0, 2: 1.0, 3: 0.0}


async def test_an_output_that_is_there_is_neither_lost_nor_mixed(source: RunFiles) -> None:
    run = await regrade(plan(source))
    before = run.files.rollouts.read_bytes()

    with pytest.raises(ConflictError, match="--resume"):
        await regrade(plan(source))
    write(source.rollouts, list(read_jsonl(source.rollouts))[1:])
    with pytest.raises(ConflictError, match="made from other rollouts"):
        await regrade(plan(source, resume=True))
    assert run.files.rollouts.read_bytes() == before

    assert rewards((await regrade(plan(source, overwrite=True))).files) == {0: 1.0, 1: 0.0, 2: 1.0}


async def test_the_source_is_never_written_over(source: RunFiles) -> None:
    before = source.rollouts.read_bytes()

    with pytest.raises(InputError, match="one of the files that the run writes"):
        await regrade(plan(source, output=source.rollouts, overwrite=True))

    assert source.rollouts.read_bytes() == before


@pytest.mark.parametrize(
    ("rollouts", "told"),
    [
        ([row(0), row(0)], "duplicate keys: 0:0 (1 in all)"),
        (
            [row(task) for task in range(5, 20)],
            "with no input row: 5:0, 6:0, 7:0, 8:0, 9:0, 10:0, 11:0, 12:0, 13:0, 14",
        ),
        ([{"reward": 1.0}], "_ng_task_index"),
        ([{**row(0), "agent_ref": None}], "0:0 names no agent"),
    ],
)
async def test_a_source_with_faults_is_refused_before_anything_runs(
    source: RunFiles, rollouts: list[Row], told: str
) -> None:
    write(source.rollouts, rollouts)

    with pytest.raises(InputError) as caught:
        await regrade(plan(source))

    assert told in caught.value.detail


async def test_a_source_that_is_not_there_is_named(source: RunFiles) -> None:
    source.inputs.unlink()

    with pytest.raises(InputError, match=r"x_materialized_inputs.jsonl: No such file"):
        await regrade(plan(source))


async def test_an_agent_that_is_not_there_is_named_with_those_that_are(source: RunFiles) -> None:
    write(source.inputs, [row(0, agent_ref={"name": "nobody"})])
    write(source.rollouts, [row(0, agent_ref={"name": "nobody"}, response={})])

    with pytest.raises(ServiceNotFoundError, match=r"no agent 'nobody' .* adder, solver, sums, words"):
        await regrade(plan(source))


async def test_each_row_goes_to_the_resources_server_of_its_agent(source: RunFiles) -> None:
    inputs = [row(task, expected=0, agent_ref={"name": name}) for task, name in enumerate(["solver", "adder"])]
    write(source.inputs, inputs)
    write(source.rollouts, [{**entry, "response": {"answer": 0}, "reward": 0.0} for entry in inputs])

    run = await regrade(plan(source))

    assert manifest_of(run.files).verifiers["adder"].resources == "sums"
    assert {name: agent.completed for name, agent in run.status().agents.items()} == {"solver": 1, "adder": 1}


async def test_only_rollouts_whose_grading_failed_can_be_taken(source: RunFiles) -> None:
    def failed(task: int, boundary: str, **fields: JsonValue) -> Row:
        failure = {"boundary": boundary, "type": "overloaded", "detail": "", "retryable": True}
        return row(task, _ng_attempt_index=0, _ng_failure_class="overloaded", failure=failure, **fields)

    write(source.rollouts, [{**row(0), "response": {"answer": 0}, "reward": 1.0}])
    write(
        source.failures,
        [
            failed(0, "resources", response={"answer": 9}),  # a later attempt succeeded
            failed(1, "model"),
            failed(2, "resources", response={"answer": 9}, note="first"),
            failed(2, "resources", response={"answer": 2}, note="last"),
            failed(2, "model"),
            failed(3, "resources"),  # the session could not be seeded
        ],
    )
    verifiers = FakeVerifiers()

    run = await regrade(plan(source, failed_only=True), verifiers)

    [asked] = verifiers.graded
    assert (asked["_ng_task_index"], asked["response"], asked["note"]) == (2, {"answer": 2}, "last")
    assert (asked["question"], asked["expected"]) == ("q2", 2)
    assert not asked.keys() & {"failure", "_ng_failure_class", "reward"}
    assert rewards(run.files) == {2: 1.0}
    assert run.stored.without_response == 2
    assert (run.changes.flip_rate, manifest_of(run.files).reverified is not None) == (None, True)
    assert [entry["_ng_task_index"] for entry in read_jsonl(run.files.inputs)] == [2]


async def test_no_failures_file_means_that_nothing_failed(source: RunFiles) -> None:
    run = await regrade(plan(source, failed_only=True))

    assert (run.status().expected, run.status().state) == (0, "finished")


def test_a_torn_last_line_is_not_graded(source: RunFiles) -> None:
    source.rollouts.write_bytes(source.rollouts.read_bytes()[:-4])

    assert [stored.key.task for stored in find_stored(source.inputs, source.rollouts)] == [3, 2, 1]


def test_continuous_rewards_flip_only_where_right_becomes_wrong() -> None:
    changes = Changes()
    for old, new in ((0.2, 0.4), (0.9, 1.0), (1.0, 0.5), (None, 1.0), (0.5, 0.5)):
        changes.add(old, new)

    assert changes == Changes(compared=4, up=2, down=1, flips=2)
