import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.collector_bench import Bench, Serve, open_bench, until

from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.testing import asgi_client

EVENT = "_rollmill_event"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path / "data", "42") as bench:
        yield bench


@pytest.fixture
async def collector(bench: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(bench.app()) as client:
        yield client


@pytest.fixture
async def live(bench: Bench, serve: Serve) -> AsyncIterator[httpx.AsyncClient]:
    """Over a socket, so that streams are streams."""
    async with serve(bench.app()) as url, httpx.AsyncClient(base_url=url, timeout=20) as client:
        yield client


def tasks(count: int, **fields: JsonValue) -> list[Row]:
    ref = {"agent_ref": {"name": "solver"}}
    return [{"responses_create_params": {"input": f"task {n}"}, **ref, **fields} for n in range(count)]


def jsonl(rows: list[Row]) -> bytes:
    return b"".join(dumps(row) + b"\n" for row in rows)


def problem(response: httpx.Response, status: int, slug: str) -> JsonObject:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: JsonObject = response.json()
    assert body["type"] == f"urn:rollmill:problem:{slug}"
    return body


async def start(client: httpx.AsyncClient, run_id: str = "a", **fields: JsonValue) -> JsonObject:
    response = await client.post("/v1/runs", json={"id": run_id, "rows": tasks(3), **fields})
    assert response.status_code == 202, response.text
    assert response.headers["location"] == f"/v1/runs/{run_id}"
    body: JsonObject = response.json()
    return body


async def status(client: httpx.AsyncClient, run_id: str = "a") -> JsonObject:
    response = await client.get(f"/v1/runs/{run_id}")
    assert response.status_code == 200, response.text
    body: JsonObject = response.json()
    return body


async def ended(client: httpx.AsyncClient, run_id: str = "a", state: str = "finished") -> JsonObject:
    async with asyncio.timeout(20):
        while (now := await status(client, run_id))["state"] in ("running", "paused"):  # noqa: ASYNC110 (the service is asked, as its users do)
            await asyncio.sleep(0.01)
    assert now["state"] == state, now
    return now


async def settled(client: httpx.AsyncClient, count: int, run_id: str = "a") -> None:
    async with asyncio.timeout(20):
        while (await status(client, run_id))["completed"] < count:  # noqa: ASYNC110 (the service is asked, as its users do)
            await asyncio.sleep(0.01)


def stream_of(text: str) -> tuple[list[Row], JsonObject]:
    """Return the rollouts and the last line's event; nothing else may be a line."""
    assert text.endswith("\n")
    *rows, event = [loads(line) for line in text.splitlines()]
    assert EVENT in event
    assert not any(EVENT in row for row in rows)
    return rows, event


def keys(rows: list[Row]) -> list[tuple[int, int]]:
    return sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)


async def test_a_run_of_inline_rows_is_accepted_and_finishes(collector: httpx.AsyncClient, bench: Bench) -> None:
    accepted = await start(collector, num_repeats=2)
    done = await ended(collector)

    assert (accepted["run_id"], accepted["expected"]) == ("a", 6)
    assert (done["completed"], done["failed"], done["mean_reward"]) == (6, 0, 1.0)
    folder = bench.data_dir / "a"
    assert len((folder / "rollouts.jsonl").read_bytes().splitlines()) == 6
    assert len((folder / "rollouts_materialized_inputs.jsonl").read_bytes().splitlines()) == 6
    [metrics] = loads((folder / "rollouts_aggregate_metrics.json").read_bytes())
    assert metrics["agent_metrics"]["mean/reward"] == 1.0


async def test_shards_are_runs_of_their_own_and_together_the_whole(collector: httpx.AsyncClient, bench: Bench) -> None:
    found = []
    for index in range(2):
        await start(collector, f"part-{index}", shard=f"{index}/2", num_repeats=2)
        await ended(collector, f"part-{index}")
        found += [
            loads(line) for line in (bench.data_dir / f"part-{index}" / "rollouts.jsonl").read_bytes().splitlines()
        ]

    assert keys(found) == [(task, rollout) for task in range(3) for rollout in range(2)]
    again = await collector.post("/v1/runs", json={"id": "part-0", "rows": tasks(3), "shard": "1/2", "num_repeats": 2})
    problem(again, 409, "conflict")
    wrong = problem(await collector.post("/v1/runs", json={"rows": tasks(3), "shard": "2/2"}), 422, "invalid-request")
    assert "/shard: Value error, 2/2 is out of range: the shards are 0/2 to 1/2" in wrong["detail"]


async def test_a_run_without_an_id_gets_one_from_its_name(collector: httpx.AsyncClient) -> None:
    response = await collector.post("/v1/runs", json={"name": "my run", "rows": tasks(1)})

    run_id = response.json()["run_id"]
    assert "my-run" in run_id
    assert response.headers["location"] == f"/v1/runs/{run_id}"
    assert (await ended(collector, run_id))["completed"] == 1


async def test_tasks_are_read_from_a_path_inside_the_data_directory(collector: httpx.AsyncClient, bench: Bench) -> None:
    bench.data_dir.mkdir()
    (bench.data_dir / "tasks.jsonl").write_bytes(jsonl(tasks(2)))

    await start(collector, rows=None, input="tasks.jsonl")
    assert (await ended(collector))["completed"] == 2


@pytest.mark.parametrize("path", ["../outside.jsonl", "/etc/hostname", "sub/../../outside.jsonl", "."])
async def test_a_path_outside_the_data_directory_is_refused(
    collector: httpx.AsyncClient, bench: Bench, path: str
) -> None:
    (bench.data_dir.parent / "outside.jsonl").write_bytes(jsonl(tasks(1)))

    response = await collector.post("/v1/runs", json={"id": "a", "input": path})
    assert "not inside the data directory" in problem(response, 422, "invalid-request")["detail"]
    problem(await collector.get("/v1/runs/a"), 404, "run-not-found")


async def test_a_link_that_leads_out_of_the_data_directory_is_refused(
    collector: httpx.AsyncClient, bench: Bench
) -> None:
    (bench.data_dir.parent / "outside.jsonl").write_bytes(jsonl(tasks(1)))
    bench.data_dir.mkdir()
    (bench.data_dir / "link.jsonl").symlink_to(bench.data_dir.parent / "outside.jsonl")

    problem(await collector.post("/v1/runs", json={"input": "link.jsonl"}), 422, "invalid-request")


async def test_a_task_file_can_be_uploaded_with_its_request(collector: httpx.AsyncClient) -> None:
    response = await collector.post(
        "/v1/runs",
        files={"file": ("tasks.jsonl", jsonl(tasks(2)), "application/x-ndjson")},
        data={"request": dumps({"id": "up", "num_repeats": 2}).decode()},
    )

    assert response.status_code == 202, response.text
    assert (await ended(collector, "up"))["completed"] == 4


async def test_an_uploaded_file_needs_no_request(collector: httpx.AsyncClient) -> None:
    response = await collector.post("/v1/runs", files={"file": ("t.jsonl", jsonl(tasks(1)))})

    assert (await ended(collector, response.json()["run_id"]))["completed"] == 1


@pytest.mark.parametrize(
    ("files", "data", "words"),
    [
        ({"other": b""}, {}, "the task file as 'file'"),
        ({"file": jsonl(tasks(1))}, {"request": "{"}, "not valid JSON"),
        ({"file": jsonl(tasks(1))}, {"request": '{"rows": []}'}, "exactly one of"),
        ({"file": jsonl(tasks(1)), "second": b""}, {}, "not a valid form"),
        ({"file": b""}, {}, "there is no task in it"),
    ],
)
async def test_a_wrong_upload_is_a_422(
    collector: httpx.AsyncClient, files: dict[str, bytes], data: dict[str, str], words: str
) -> None:
    response = await collector.post("/v1/runs", files=files, data=data)

    assert words in problem(response, 422, "invalid-request")["detail"]
    assert (await collector.get("/v1/runs")).json() == {"runs": []}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"rows": [], "surprise": 1}, "/surprise"),
        ({"rows": [{}], "concurrency": 0}, "/concurrency"),
        ({"rows": [{}], "concurrency": 65_537}, "/concurrency"),
        ({"rows": [{}], "id": "../x"}, "/id"),
        ({"rows": [5]}, "/rows/0"),
        ({"rows": [{}], "top_p": 0}, "/top_p"),
    ],
)
async def test_a_wrong_field_is_a_422_that_names_it(
    collector: httpx.AsyncClient, body: JsonObject, pointer: str
) -> None:
    response = await collector.post("/v1/runs", json=body)

    assert [fault["pointer"] for fault in problem(response, 422, "invalid-request")["errors"]] == [pointer]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"rows": NaN}'])
async def test_a_body_that_is_no_request_is_a_422(collector: httpx.AsyncClient, body: bytes) -> None:
    problem(await collector.post("/v1/runs", content=body), 422, "invalid-request")


@pytest.mark.parametrize("sources", [{}, {"input": "x.jsonl", "rows": []}])
async def test_tasks_from_no_source_or_from_two_are_a_422(collector: httpx.AsyncClient, sources: JsonObject) -> None:
    response = await collector.post("/v1/runs", json={"id": "a", **sources})

    assert "exactly one of" in problem(response, 422, "invalid-request")["detail"]
    problem(await collector.get("/v1/runs/a"), 404, "run-not-found")


async def test_faults_of_the_tasks_are_told_with_their_lines(collector: httpx.AsyncClient, bench: Bench) -> None:
    rows: list[Row] = [*tasks(1), {"responses_create_params": {}}, {}]

    detail = problem(await collector.post("/v1/runs", json={"rows": rows}), 422, "invalid-request")["detail"]
    assert "lines 2, 3" in detail
    assert list(bench.data_dir.iterdir()) == []


async def test_the_same_request_twice_is_the_same_run(collector: httpx.AsyncClient, bench: Bench) -> None:
    await start(collector)
    await ended(collector)

    assert (await start(collector, concurrency=3))["state"] == "finished"
    assert len(bench.desk.started) == 3
    assert len((await collector.get("/v1/runs")).json()["runs"]) == 1


async def test_the_same_request_posted_at_the_same_time_is_run_once(collector: httpx.AsyncClient, bench: Bench) -> None:
    answers = await asyncio.gather(*(start(collector) for _ in range(5)))
    done = await ended(collector)

    assert {answer["run_id"] for answer in answers} == {"a"}
    assert done["completed"] == 3
    assert len(bench.desk.started) == 3


@pytest.mark.parametrize("other", [{"rows": tasks(2)}, {"num_repeats": 2}, {"temperature": 0.5}, {"agent": "other"}])
async def test_the_same_id_with_other_content_is_a_409(collector: httpx.AsyncClient, other: JsonObject) -> None:
    await start(collector)

    response = await collector.post("/v1/runs", json={"id": "a", "rows": tasks(3), **other})
    assert "another run called 'a'" in problem(response, 409, "conflict")["detail"]
    assert (await ended(collector))["completed"] == 3


async def test_a_refused_run_leaves_its_id_free(collector: httpx.AsyncClient) -> None:
    rows = tasks(1, agent_ref={"name": "nobody"})

    detail = problem(await collector.post("/v1/runs", json={"id": "a", "rows": rows}), 404, "service-not-found")[
        "detail"
    ]
    assert "'nobody'" in detail
    assert "other, solver" in detail
    await start(collector)
    assert (await ended(collector))["completed"] == 3


async def test_a_service_that_is_no_agent_cannot_run_rows(collector: httpx.AsyncClient) -> None:
    rows = tasks(1, agent_ref={"name": "policy"})

    problem(await collector.post("/v1/runs", json={"id": "a", "rows": rows}), 422, "invalid-request")
    problem(await collector.get("/v1/runs/a"), 404, "run-not-found")


async def test_more_runs_at_once_than_allowed_are_a_429(bench: Bench) -> None:
    bench.desk.open = False
    async with asgi_client(bench.app(max_runs=1)) as client:
        await start(client, "a")
        response = await client.post("/v1/runs", json={"id": "b", "rows": tasks(1)})

        problem(response, 429, "too-many-runs")
        assert float(response.headers["retry-after"]) > 0
        bench.desk.let(3)
        await ended(client)
        bench.desk.let(3)
        await start(client, "b")
        await ended(client, "b")


async def test_runs_are_listed_newest_first_and_at_once(collector: httpx.AsyncClient, bench: Bench) -> None:
    bench.desk.open = False
    for run_id in ("b", "a", "c"):
        await start(collector, run_id)

    assert [run["run_id"] for run in (await collector.get("/v1/runs")).json()["runs"]] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "/rollouts"), ("POST", "/cancel"), ("POST", "/pause"), ("POST", "/resume"), ("PATCH", "")],
)
async def test_an_unknown_run_is_a_404(collector: httpx.AsyncClient, method: str, path: str) -> None:
    body = {"concurrency": 1} if method == "PATCH" else None

    problem(await collector.request(method, f"/v1/runs/nope{path}", json=body), 404, "run-not-found")


async def test_the_status_has_the_means_of_each_agent(collector: httpx.AsyncClient) -> None:
    rows = [*tasks(2, worth=0.5), *tasks(1, worth=2.0, agent_ref={"name": "other"}), *tasks(1, broken=True)]
    await start(collector, rows=rows)
    done = await ended(collector)

    assert done["agents"] == {
        "solver": {"expected": 3, "completed": 2, "failed": 1, "mean_reward": 0.5},
        "other": {"expected": 1, "completed": 1, "failed": 0, "mean_reward": 2.0},
    }
    assert (done["expected"], done["completed"], done["failed"], done["mean_reward"]) == (4, 3, 1, 1.0)
    assert done["eta_seconds"] is None


async def test_a_prompt_config_and_request_parameters_reach_the_model(
    collector: httpx.AsyncClient, bench: Bench
) -> None:
    rows: list[Row] = [{"agent_ref": {"name": "solver"}, "question": "6 x 7?"}]
    await start(collector, rows=rows, prompt={"user": "Q: {question}"}, temperature=0.25, params={"top_k": 3})
    await ended(collector)

    [request] = bench.model.requests
    assert "Q: 6 x 7?" in str(request["input"])
    assert (request["temperature"], request["top_k"]) == (0.25, 3)


async def test_a_wrong_prompt_config_is_a_422_and_the_id_stays_free(collector: httpx.AsyncClient) -> None:
    body = {"id": "a", "rows": tasks(1), "prompt": {"system": "no user part"}}

    problem(await collector.post("/v1/runs", json=body), 422, "invalid-request")
    problem(await collector.get("/v1/runs/a"), 404, "run-not-found")


async def test_a_huge_body_is_a_413(bench: Bench) -> None:
    async with asgi_client(bench.app(max_body_bytes=2048)) as client:
        body = {"rows": tasks(1, filler="x" * 4096)}

        problem(await client.post("/v1/runs", json=body), 413, "payload-too-large")
        problem(await client.post("/collect", json=body), 413, "payload-too-large")
        problem(await client.post("/v1/runs", files={"file": jsonl(body["rows"])}), 413, "payload-too-large")


async def test_a_run_of_the_command_line_is_known_but_its_name_is_taken(
    collector: httpx.AsyncClient, bench: Bench
) -> None:
    await start(collector, "made")
    await ended(collector, "made")
    for path in (bench.data_dir / "made").glob("rollouts*"):
        path.rename(bench.data_dir / path.name.replace("rollouts", "flat"))

    assert (await status(collector, "flat"))["completed"] == 3
    problem(await collector.post("/v1/runs", json={"id": "flat", "rows": tasks(3)}), 409, "conflict")


async def test_a_finished_run_streams_its_file_and_an_end_line(collector: httpx.AsyncClient, bench: Bench) -> None:
    await start(collector)
    await ended(collector)

    for query in ({}, {"follow": "true"}):
        response = await collector.get("/v1/runs/a/rollouts", params=query)
        assert response.headers["content-type"].startswith("application/x-ndjson")
        assert response.content.startswith((bench.data_dir / "a" / "rollouts.jsonl").read_bytes())
        rows, event = stream_of(response.text)
        assert keys(rows) == [(0, 0), (1, 0), (2, 0)]
        assert (event[EVENT], event["state"], event["completed"]) == ("end", "finished", 3)


@pytest.mark.parametrize(("from_line", "left"), [(0, 3), (1, 2), (3, 0), (9, 0)])
async def test_a_stream_starts_at_any_line(collector: httpx.AsyncClient, from_line: int, left: int) -> None:
    await start(collector)
    await ended(collector)
    everything, _ = stream_of((await collector.get("/v1/runs/a/rollouts")).text)

    rows, event = stream_of((await collector.get("/v1/runs/a/rollouts", params={"from_line": from_line})).text)
    assert rows == everything[from_line:]
    assert len(rows) == left
    assert event[EVENT] == "end"


async def test_a_negative_line_is_a_422(collector: httpx.AsyncClient) -> None:
    await start(collector)

    problem(await collector.get("/v1/runs/a/rollouts", params={"from_line": -1}), 422, "invalid-request")


async def test_without_follow_a_stream_ends_with_what_is_there(live: httpx.AsyncClient, bench: Bench) -> None:
    bench.desk.open = False
    await start(live)
    bench.desk.let(1)
    await settled(live, 1)
    await asyncio.sleep(0.2)  # a group commit later

    rows, event = stream_of((await live.get("/v1/runs/a/rollouts")).text)
    assert len(rows) == 1
    assert (event[EVENT], event["state"]) == ("end", "running")


async def test_a_followed_run_streams_each_rollout_as_it_comes(live: httpx.AsyncClient, bench: Bench) -> None:
    bench.desk.open = False
    await start(live)
    seen: list[Row] = []
    async with live.stream("GET", "/v1/runs/a/rollouts", params={"follow": True, "from_line": 1}) as response:
        lines = response.aiter_lines()
        bench.desk.let(2)
        seen.append(loads(await anext(lines)))
        assert (await status(live))["state"] == "running"
        bench.desk.let(1)
        seen.extend([loads(line) async for line in lines])

    *rows, event = seen
    assert len(rows) == 2
    assert (event[EVENT], event["completed"]) == ("end", 3)


async def test_collect_creates_a_run_and_streams_it(live: httpx.AsyncClient) -> None:
    response = await live.post("/collect", json={"id": "a", "rows": tasks(3), "num_repeats": 2})

    assert response.headers["x-rollmill-run"] == "a"
    assert response.headers["location"] == "/v1/runs/a"
    rows, event = stream_of(response.text)
    assert keys(rows) == [(task, repeat) for task in range(3) for repeat in range(2)]
    assert (event[EVENT], event["state"]) == ("end", "finished")


async def test_collect_answers_a_wrong_request_with_its_status(collector: httpx.AsyncClient) -> None:
    problem(await collector.post("/collect", json={"rows": []}), 422, "invalid-request")
    problem(await collector.post("/collect", json={}), 422, "invalid-request")


async def test_the_stream_of_a_failed_run_ends_with_an_error_line(live: httpx.AsyncClient, bench: Bench) -> None:
    bench.desk.open = False
    await start(live)
    await until(lambda: (bench.data_dir / "a" / "rollouts_manifest.json").exists())
    (bench.data_dir / "a" / "rollouts_aggregate_metrics.json").mkdir()  # nothing can be written over a folder
    bench.desk.let(3)

    rows, event = stream_of((await live.get("/v1/runs/a/rollouts", params={"follow": True})).text)
    assert len(rows) == 3
    assert event[EVENT] == "error"
    assert event["status"] == 500
    assert "rollouts_aggregate_metrics.json" in event["detail"]
    assert event["run"]["state"] == "failed"
    assert (await status(live))["state"] == "failed"


async def test_a_client_that_leaves_stops_its_stream_and_not_the_run(live: httpx.AsyncClient, bench: Bench) -> None:
    bench.desk.open = False
    async with live.stream("POST", "/collect", json={"id": "a", "rows": tasks(3)}) as response:
        bench.desk.let(1)
        await anext(response.aiter_lines())
    await asyncio.sleep(0.1)

    assert (await status(live))["state"] == "running"
    bench.desk.let(2)
    assert (await ended(live))["completed"] == 3


@pytest.mark.parametrize("rollouts", [0, 1])
async def test_a_client_that_leaves_an_attached_run_cancels_it(
    live: httpx.AsyncClient, bench: Bench, rollouts: int
) -> None:
    bench.desk.open = False
    body = {"id": "a", "rows": tasks(3)}
    async with live.stream("POST", "/collect", params={"attached": True}, json=body) as response:
        await until(lambda: len(bench.desk.started) == 3)
        bench.desk.let(rollouts)
        lines = response.aiter_lines()
        for _ in range(rollouts):
            await anext(lines)

    assert (await ended(live, state="cancelled"))["completed"] == rollouts


async def test_an_attached_run_that_is_read_to_its_end_finishes(live: httpx.AsyncClient) -> None:
    response = await live.post("/collect", params={"attached": True}, json={"id": "a", "rows": tasks(3)})

    _, event = stream_of(response.text)
    assert event["state"] == "finished"
    assert (await status(live))["state"] == "finished"


async def test_a_reader_that_stands_still_slows_nobody(live: httpx.AsyncClient) -> None:
    rows = tasks(40, filler="x" * 200_000)
    async with live.stream("POST", "/collect", json={"id": "a", "rows": rows}) as response:
        assert (await ended(live))["completed"] == 40  # nothing of the stream has been read yet
        read = b"".join([chunk async for chunk in response.aiter_bytes()])

    streamed, event = stream_of(read.decode())
    assert len(streamed) == 40
    assert event["state"] == "finished"
