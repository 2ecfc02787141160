import asyncio
import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.artifacts.run_store import RunStore
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import RunState
from rollmill_services.profiler.app import create_app
from rollmill_services.profiler.profiler import Profiler
from rollmill_services.profiler.requests import LiveBody, ProfileBody
from rollmill_services.profiler.settings import ProfilerSettings


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def write(path: Path, *rows: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


def write_manifest(files: RunFiles, state: RunState = "finished", expected: int = 4) -> None:
    counts = Counts(expected=expected)
    Manifest(run_id="made", state=state, counts=counts, digests=Digests(input="", overrides="")).write(files.manifest)


INPUTS = [row(task, index, question=f"q{task}") for task in (0, 1) for index in (0, 1)]
ROLLOUTS = [
    row(1, 1, reward=1.0, response={"usage": {"output_tokens": 5}}),
    row(0, 1, reward=0.0),
    row(0, 0, reward=1.0),
    row(1, 0, reward=1.0),
]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """A finished run called `a`."""
    files = RunFiles.at(tmp_path / "a" / "rollouts.jsonl")
    write(files.inputs, *INPUTS)
    write(files.rollouts, *ROLLOUTS)
    write_manifest(files)
    return files


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(ProfilerSettings(data_dir=tmp_path, max_rows=4, max_body_bytes=4096))
    async with app.running():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://profiler") as client:
            yield client


def problem(response: httpx.Response, status: int, slug: str) -> str:
    """Check a problem document and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["type"] == f"urn:rollmill:problem:{slug}"
    return str(body["detail"])


def table(response: httpx.Response) -> list[dict[str, str]]:
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(response.text)))


async def get(client: httpx.AsyncClient, *, run: str | int | bool = "a", **query: str | int | bool) -> httpx.Response:
    return await client.get(f"/v1/runs/{run}/profile", params=query)


async def body_of(client: httpx.AsyncClient, **query: str | int | bool) -> JsonObject:
    response = await get(client, **query)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    body: JsonObject = response.json()
    ProfileBody.model_validate(body)
    return body


async def test_a_runs_profile_has_completion_agents_and_tasks(client: httpx.AsyncClient, files: RunFiles) -> None:
    body = await body_of(client)

    assert (body["run_id"], body["state"]) == ("a", "finished")
    assert body["completion"]["reward_profile_completion_pct"] == 100.0
    [agent] = body["agents"]
    assert (agent["agent_ref"], agent["mean/reward"]) == ({"name": "solver"}, 0.75)
    assert [task["mean/reward"] for task in body["tasks"]] == [0.5, 1.0]
    assert body["tasks"][1]["sample"] == {"agent_ref": {"name": "solver"}, "question": "q1"}
    assert [info["rollout_id"] for info in body["tasks"][1]["rollout_infos"]] == ["1:0", "1:1"]
    assert (body["tasks_total"], body["offset"], body["limit"]) == (2, 0, 100)


@pytest.mark.parametrize(
    ("level", "members"),
    [
        ("summary", {"completion", "summaries"}),
        ("agent", {"agents"}),
        ("task", {"tasks", "tasks_total", "offset", "limit"}),
    ],
)
async def test_a_level_limits_what_is_answered(
    client: httpx.AsyncClient, files: RunFiles, level: str, members: set[str]
) -> None:
    assert set(await body_of(client, level=level)) == {"run_id", "state"} | members


async def test_tasks_come_in_pages(client: httpx.AsyncClient, tmp_path: Path, files: RunFiles) -> None:
    second = await body_of(client, offset=1, limit=1)
    beyond = await body_of(client, offset=7)

    assert [task["_ng_task_index"] for task in second["tasks"]] == [1]
    assert (second["tasks_total"], second["offset"], second["limit"]) == (2, 1, 1)
    assert (beyond["tasks"], beyond["tasks_total"]) == ([], 2)


async def test_a_profile_can_be_had_as_csv(client: httpx.AsyncClient, files: RunFiles) -> None:
    tasks = table(await get(client, format="csv"))
    page = table(await get(client, format="csv", level="task", offset=1, limit=1))
    [agent] = table(await get(client, format="csv", level="agent"))
    summary = table(await get(client, format="csv", level="summary"))

    assert [(task["_ng_task_index"], task["mean/reward"], task["num_rollouts"]) for task in tasks] == [
        ("0", "0.5", "2"),
        ("1", "1.0", "2"),
    ]
    assert tasks[0]["mean/output_tokens"] == ""
    assert page == tasks[1:]
    assert (agent["agent"], agent["mean/reward"]) == ("solver", "0.75")
    [mean] = [entry for entry in summary if entry["estimate"] == "mean_reward"]
    assert (mean["agent"], mean["value"], mean["tasks_used"], mean["rollouts"]) == ("solver", "0.75", "2", "4")


async def test_a_run_of_the_command_line_is_profiled_by_its_name(client: httpx.AsyncClient, tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    write(files.inputs, *INPUTS)
    write(files.rollouts, *ROLLOUTS)
    write_manifest(files)

    assert (await body_of(client, run="x"))["run_id"] == "x"


async def test_a_running_run_is_profiled_as_it_stands(client: httpx.AsyncClient, files: RunFiles) -> None:
    write(files.inputs, *INPUTS[:3])
    write(files.rollouts, *ROLLOUTS)
    write_manifest(files, "running", expected=12)
    with files.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 5, "rew')

    body = await body_of(client)

    assert body["state"] == "running"
    assert body["completion"]["completed_rollouts"] == 3  # the fourth one's input row is not written yet
    assert (body["completion"]["expected_rollouts"], body["completion"]["missing_rollouts"]) == (12, 9)
    assert body["completion"]["reward_profile_completion_pct"] == 25.0
    assert "not started yet" in problem(await get(client, allow_partial=False), 422, "invalid-request")


async def test_a_profile_that_must_be_complete_names_what_is_missing(
    client: httpx.AsyncClient, files: RunFiles
) -> None:
    write(files.rollouts, *ROLLOUTS[:2])

    response = await get(client, allow_partial=False)

    assert "0:0, 1:0" in problem(response, 422, "invalid-request")
    assert response.json()["count"] == 2
    assert (await body_of(client))["completion"]["partial_tasks"] == 2


@pytest.mark.parametrize("with_files", [True, False])
async def test_a_run_with_no_rollouts_has_a_defined_empty_profile(
    client: httpx.AsyncClient, tmp_path: Path, with_files: bool
) -> None:
    files = RunFiles.at(tmp_path / "a" / "rollouts.jsonl")
    write_manifest(files, "running")
    if with_files:
        write(files.inputs, *INPUTS)
        write(files.rollouts)

    body = await body_of(client)

    assert (body["agents"], body["tasks"], body["tasks_total"]) == ([], [], 0)
    assert (body["completion"]["expected_rollouts"], body["completion"]["completed_rollouts"]) == (4, 0)
    assert table(await get(client, format="csv")) == table(await get(client, format="csv", level="agent")) == []


async def test_an_unknown_run_is_a_404_problem(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "created").mkdir()

    response = await get(client, run="nope")

    assert problem(response, 404, "run-not-found") == "no run is called 'nope'"
    assert (response.json()["run_id"], response.json()["instance"]) == ("nope", "/v1/runs/nope/profile")
    assert "never started" in problem(await get(client, run="created"), 404, "run-not-found")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({"format": "xml"}, ["query:format", "'json'", "'csv'", "'parquet'", "'html'"]),
        ({"filter": ""}, ["query:filter"]),
        ({"filter": "mean_reward >"}, ["mean_reward >", "^"]),
        ({"filter": "colour > 1"}, ["colour", "mean_"]),
        ({"level": "rollout"}, ["query:level", "'task'", "'agent'", "'summary'"]),
        ({"limit": 0}, ["query:limit"]),
        ({"limit": 10_001}, ["query:limit"]),
        ({"offset": -1}, ["query:offset"]),
        ({"allow_partial": "maybe"}, ["query:allow_partial"]),
        ({"levle": "task"}, ["query:levle"]),
        ({"run": "%2E%2E"}, ["path:run_id"]),
        ({"run": "a b"}, ["path:run_id"]),
    ],
)
async def test_a_wrong_parameter_is_named(
    client: httpx.AsyncClient, files: RunFiles, query: dict[str, str | int], told: list[str]
) -> None:
    detail = problem(await get(client, **query), 422, "invalid-request")

    assert all(words in detail for words in told), detail


async def test_a_damaged_run_says_which_line(client: httpx.AsyncClient, files: RunFiles) -> None:
    files.rollouts.write_bytes(dumps(ROLLOUTS[0]) + b"\n{]\n")

    assert "rollouts.jsonl:2: not valid JSON" in problem(await get(client), 422, "invalid-request")


async def test_posted_rows_are_profiled(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/profile", json={"rollouts": ROLLOUTS[:3], "inputs": INPUTS, "allow_partial": True}
    )

    assert response.status_code == 200
    body = response.json()
    ProfileBody.model_validate(body)
    assert (body["run_id"], body["state"]) == (None, None)
    assert body["completion"]["reward_profile_completion_pct"] == 75.0
    assert body["tasks"][0]["sample"]["question"] == "q0"
    assert body["agents"][0]["mean/reward"] == pytest.approx(2 / 3)


async def test_posted_rollouts_stand_for_the_inputs_when_there_are_none(client: httpx.AsyncClient) -> None:
    response = await client.post(
        "/v1/profile", params={"level": "summary"}, json={"rollouts": ROLLOUTS, "inputs": None}
    )
    empty = await client.post("/v1/profile", json={"rollouts": []})

    assert response.json()["completion"]["reward_profile_completion_pct"] == 100.0
    assert (empty.status_code, empty.json()["tasks"], empty.json()["agents"]) == (200, [], [])


async def test_a_number_beyond_64_bits_in_a_posted_row_is_no_failure(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/profile", json={"rollouts": [row(0, 0, reward=1.0, huge=2**80)]})

    assert response.status_code == 200
    assert response.json()["agents"][0]["mean/huge"] == pytest.approx(2.0**80)


async def test_files_in_the_data_directory_are_profiled(client: httpx.AsyncClient, files: RunFiles) -> None:
    paths = {"rollouts_path": "a/rollouts.jsonl", "inputs_path": "a/rollouts_materialized_inputs.jsonl"}

    both = await client.post("/v1/profile", json=paths)
    alone = await client.post("/v1/profile", params={"format": "csv"}, json={"rollouts_path": "a/rollouts.jsonl"})

    assert both.json()["tasks"][0]["sample"]["question"] == "q0"
    assert [task["mean/reward"] for task in table(alone)] == ["0.5", "1.0"]


@pytest.mark.parametrize(
    ("request_body", "told"),
    [
        ({}, "give exactly one of rollouts and rollouts_path"),
        ({"rollouts": [], "rollouts_path": "x.jsonl"}, "give exactly one of rollouts and rollouts_path"),
        ({"rollouts": [], "inputs_path": "x.jsonl"}, "posted rollouts go with posted inputs"),
        ({"rollouts_path": "x.jsonl", "inputs": []}, "rollouts_path goes with inputs_path"),
        ({"rollouts": [row(0, 0), 7]}, "/rollouts/1: "),
        ({"rollouts": [], "partial": True}, "/partial: Extra inputs"),
        ({"rollouts": [{"reward": 1.0}]}, "rollout 1: _ng_task_index"),
        ({"rollouts": [row(0, 0), row(0, 0)]}, "duplicate keys in the rollouts: 0:0"),
        ({"rollouts": [row(0, 0)], "inputs": [row(0, 0), row(0, 1)]}, "input rows with no rollout"),
        ({"rollouts": [row(0, 0)], "inputs": []}, "rollouts with no input row: 0:0"),
        ({"rollouts_path": "none.jsonl"}, "none.jsonl: No such file"),
        ({"rollouts_path": "../outside.jsonl"}, "not inside the data directory"),
        ({"rollouts_path": "/etc/hostname"}, "not inside the data directory"),
        ({"rollouts_path": "x.jsonl", "inputs_path": "../x.jsonl"}, "not inside the data directory"),
        ([], "/: Input should be"),
    ],
)
async def test_a_wrong_request_says_what_is_wrong(
    client: httpx.AsyncClient, request_body: JsonValue, told: str
) -> None:
    assert told in problem(await client.post("/v1/profile", json=request_body), 422, "invalid-request")


async def test_the_faults_of_a_request_have_pointers_and_are_not_endless(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/profile", json={"rollouts": [1] * 50})

    problem(response, 422, "invalid-request")
    assert [fault["pointer"] for fault in response.json()["errors"]] == [f"/rollouts/{n}" for n in range(10)]


@pytest.mark.parametrize("content", [b"", b"{", b'{"rollouts": [{"reward": NaN}]}'])
async def test_a_body_that_is_not_json_is_a_422_problem(client: httpx.AsyncClient, content: bytes) -> None:
    response = await client.post("/v1/profile", content=content)

    assert "not valid JSON" in problem(response, 422, "invalid-request")


async def test_too_much_is_a_413_problem(client: httpx.AsyncClient) -> None:
    rows = await client.post("/v1/profile", json={"rollouts": [row(0, n) for n in range(5)]})
    inputs = await client.post("/v1/profile", json={"rollouts": [], "inputs": [row(0, n) for n in range(5)]})
    text = await client.post("/v1/profile", content=b" " * 5000)

    assert "rollouts: 5 rows, more than 4" in problem(rows, 413, "payload-too-large")
    assert "inputs_path" in problem(inputs, 413, "payload-too-large")
    assert "max_body_bytes" in problem(text, 413, "payload-too-large")


async def test_many_profiles_at_once_are_all_answered(client: httpx.AsyncClient, files: RunFiles) -> None:
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(body_of(client, level="agent")) for _ in range(8)]

    assert {dumps(call.result()) for call in calls} == {dumps(calls[0].result())}


async def test_a_live_query_takes_in_what_is_new(client: httpx.AsyncClient, files: RunFiles) -> None:
    write_manifest(files, "running", expected=8)

    first = LiveBody.model_validate((await client.get("/v1/runs/a/live")).json())
    with files.rollouts.open("ab") as file:
        file.write(dumps(row(2, 0, reward=0.0)) + b"\n" + dumps(row(2, 1))[:9])
    second = LiveBody.model_validate((await client.get("/v1/runs/a/live")).json())

    assert (first.state, first.rollouts, first.expected_rollouts) == ("running", 4, 8)
    assert first.agents["solver"]["metrics"]["mean/reward"] == 0.75
    assert (second.rollouts, second.agents["solver"]["metrics"]["mean/reward"]) == (5, 0.6)
    problem(await client.get("/v1/runs/b/live"), 404, "run-not-found")


async def test_runs_asked_about_long_ago_are_forgotten_and_read_again(tmp_path: Path, files: RunFiles) -> None:
    profiler = Profiler(RunStore(tmp_path), max_rows=4, max_followed=1)
    other = RunFiles.at(tmp_path / "b" / "rollouts.jsonl")
    write(other.rollouts, ROLLOUTS[0])
    write_manifest(other)

    found = [profiler.live(run)["rollouts"] for run in ("a", "b", "a", "a")]

    assert found == [4, 1, 4, 4]


async def test_a_deadline_that_has_passed_is_a_504_problem(client: httpx.AsyncClient, files: RunFiles) -> None:
    response = await client.get("/v1/runs/a/profile", headers={"x-rollmill-deadline": "1.0"})

    problem(response, 504, "deadline-passed")


async def test_a_token_guards_the_profiles(tmp_path: Path) -> None:
    app = create_app(ProfilerSettings(data_dir=tmp_path, token=SecretStr("secret")))
    async with app.running(), httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://p") as client:
        refused = await client.get("/v1/runs/a/profile")
        let_in = await client.get("/v1/runs/a/profile", headers={"authorization": "Bearer secret"})

    problem(refused, 401, "unauthorized")
    problem(let_in, 404, "run-not-found")


async def test_the_service_says_what_it_is(client: httpx.AsyncClient) -> None:
    assert (await client.get("/version")).json()["kind"] == "profiler"
    assert (await client.get("/readyz")).status_code == 204


async def test_routes_and_their_problems_are_declared(client: httpx.AsyncClient) -> None:
    openapi = (await client.get("/openapi.json")).json()
    run, posted = openapi["paths"]["/v1/runs/{run_id}/profile"]["get"], openapi["paths"]["/v1/profile"]["post"]

    names = {parameter["name"] for parameter in run["parameters"]}
    assert names == {"run_id", "level", "format", "filter", "offset", "limit", "allow_partial"}
    assert set(run["responses"]) == {"200", "401", "404", "422", "504"}
    kinds = {"application/json", "text/csv", "text/html", "application/vnd.apache.parquet"}
    assert set(run["responses"]["200"]["content"]) == kinds
    assert set(posted["responses"]) == {"200", "401", "413", "422", "504"}
    schema = posted["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"rollouts", "rollouts_path", "inputs", "inputs_path", "allow_partial"}
    assert "application/problem+json" in run["responses"]["404"]["content"]


def test_settings_are_read_from_the_environment() -> None:
    found = ProfilerSettings.from_environment({"ROLLMILL_DATA_DIR": "/data", "ROLLMILL_MAX_ROWS": "5"})

    assert (found.data_dir, found.max_rows, found.max_profiles) == (Path("/data"), 5, 2)
