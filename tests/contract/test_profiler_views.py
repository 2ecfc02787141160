"""What the profiler answers beyond the classic statistics: summaries, filters, Parquet, the report, comparisons."""

import asyncio
import io
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pandas
import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest, Scoring, Verifier
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill_services.profiler.app import create_app
from rollmill_services.profiler.requests import ComparisonBody, ProfileBody
from rollmill_services.profiler.settings import ProfilerSettings

REWARDS = {0: [0.0, 0.0], 1: [0.0, 1.0], 2: [1.0, 1.0], 3: [1.0, 0.0]}


def row(task: int, index: int, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def rollouts(rewards: dict[int, list[float]]) -> list[Row]:
    return [
        row(task, index, reward=reward, style=task / 10, response={"output": [], "usage": {"output_tokens": 10 * task}})
        for task, found in rewards.items()
        for index, reward in enumerate(found)
    ]


def write_run(folder: Path, name: str, rewards: dict[int, list[float]], **manifest: object) -> RunFiles:
    files = RunFiles.at(folder / name / "rollouts.jsonl")
    files.rollouts.parent.mkdir(parents=True, exist_ok=True)
    rows = rollouts(rewards)
    inputs = [row(entry["_ng_task_index"], entry["_ng_rollout_index"]) for entry in rows]
    for path, lines in ((files.rollouts, rows), (files.inputs, inputs)):
        path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in lines))
    values: JsonObject = {
        "run_id": name,
        "state": "finished",
        "counts": Counts(expected=len(rows), completed=len(rows)),
        "digests": Digests(input="tasks", overrides=""),
        "verifiers": {"solver": Verifier(resources="words", name="m:V", version="1")},
        **manifest,
    }
    Manifest(**values).write(files.manifest)
    return files


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    write_run(tmp_path, "a", REWARDS)
    app = create_app(ProfilerSettings(data_dir=tmp_path))
    async with app.running():
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://profiler", timeout=60) as client:
            yield client


async def get(client: httpx.AsyncClient, run: str | int | bool = "a", **query: str | int | bool) -> httpx.Response:
    response = await client.get(f"/v1/runs/{run}/profile", params=query)
    assert response.status_code == 200, response.text
    return response


async def body_of(client: httpx.AsyncClient, **query: str | int | bool) -> JsonObject:
    body: JsonObject = (await get(client, **query)).json()
    ProfileBody.model_validate(body)
    return body


async def frame_of(client: httpx.AsyncClient, **query: str | int | bool) -> pandas.DataFrame:
    response = await get(client, format="parquet", **query)
    assert response.headers["content-type"] == "application/vnd.apache.parquet"
    return pandas.read_parquet(io.BytesIO(response.content))


async def test_a_summary_has_each_agents_estimates_with_intervals(client: httpx.AsyncClient) -> None:
    body = await body_of(client, level="summary")

    summary = body["summaries"]["solver"]
    mean = summary["estimates"]["mean_reward"]
    assert (summary["tasks"], summary["rollouts"], summary["score_field"]) == (4, 8, "reward")
    assert (mean["value"], mean["tasks_used"], mean["tasks_total"], mean["rollouts"]) == (0.5, 4, 4, 8)
    assert mean["low"] < 0.5 < mean["high"]
    assert body["completion"]["reward_profile_completion_pct"] == 100.0


async def test_the_score_is_the_one_that_the_environment_chose(client: httpx.AsyncClient, tmp_path: Path) -> None:
    write_run(tmp_path, "styled", REWARDS, scoring={"solver": Scoring(score_fields=["style", "reward"])})

    summary = (await get(client, "styled", level="summary")).json()["summaries"]["solver"]

    assert summary["score_field"] == "style"
    assert summary["estimates"]["mean_reward"]["value"] == pytest.approx(0.15)


async def test_a_score_that_no_rollout_has_falls_back_to_the_reward(client: httpx.AsyncClient, tmp_path: Path) -> None:
    write_run(tmp_path, "styled", REWARDS, scoring={"solver": Scoring(score_fields=["beauty"])})

    summary = (await get(client, "styled", level="summary")).json()["summaries"]["solver"]

    assert (summary["score_field"], summary["estimates"]["mean_reward"]["value"]) == ("reward", 0.5)


async def test_a_filter_chooses_tasks_on_every_level(client: httpx.AsyncClient) -> None:
    mixed = "0.1 < mean_reward < 0.9"

    everything = await body_of(client, filter=mixed)
    page = await body_of(client, filter=mixed, level="task", offset=1, limit=1)
    summary = await body_of(client, filter=mixed, level="summary")
    nothing = await body_of(client, filter="mean_reward > 2")

    assert [task["_ng_task_index"] for task in everything["tasks"]] == [1, 3]
    assert (everything["tasks_total"], everything["filter"]) == (2, mixed)
    assert everything["completion"]["completed_rollouts"] == 8
    assert everything["agents"][0]["mean/output_tokens"] == 20.0
    assert [task["_ng_task_index"] for task in page["tasks"]] == [3]
    assert (page["tasks_total"], page["offset"], page["limit"]) == (2, 1, 1)
    assert summary["summaries"]["solver"]["tasks"] == 2
    assert (nothing["tasks"], nothing["tasks_total"], nothing["agents"]) == ([], 0, [])


async def test_without_a_filter_and_with_one_that_holds_everywhere_the_agents_are_the_same(
    client: httpx.AsyncClient,
) -> None:
    plain = await body_of(client, level="agent")
    filtered = await body_of(client, level="agent", filter="num_rollouts >= 1")

    assert filtered["agents"] == plain["agents"]


async def test_tables_can_be_had_as_parquet(client: httpx.AsyncClient) -> None:
    tasks = await frame_of(client)
    page = await frame_of(client, level="task", filter="mean_reward == 0.5", offset=1)
    agents = await frame_of(client, level="agent")
    estimates = await frame_of(client, level="summary")

    assert tasks["_ng_task_index"].tolist() == [0, 1, 2, 3]
    assert tasks["mean/reward"].tolist() == [0.0, 0.5, 1.0, 0.5]
    assert page["_ng_task_index"].tolist() == [3]
    assert agents[["agent", "mean/reward"]].to_numpy().tolist() == [["solver", 0.5]]
    means = estimates[estimates["estimate"] == "mean_reward"]
    assert means[["agent", "value", "tasks_used"]].to_numpy().tolist() == [["solver", 0.5, 4]]


async def test_the_report_is_one_page_that_runs_no_script(client: httpx.AsyncClient) -> None:
    response = await get(client, format="html")

    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.text.lstrip().lower().startswith("<!doctype html>")
    assert "solver" in response.text
    assert "<script" not in response.text


async def test_posted_rows_have_every_view_too(client: httpx.AsyncClient) -> None:
    async def post(**query: str) -> httpx.Response:
        response = await client.post("/v1/profile", params=query, json={"rollouts": rollouts(REWARDS)})
        assert response.status_code == 200, response.text
        return response

    assert (await post(level="summary")).json()["summaries"]["solver"]["tasks"] == 4
    assert (await post(filter="mean_reward > 0.9")).json()["tasks_total"] == 1
    assert "<script" not in (await post(format="html")).text
    assert len(pandas.read_parquet(io.BytesIO((await post(format="parquet")).content))) == 4


async def test_files_in_the_data_directory_have_every_view_too(client: httpx.AsyncClient) -> None:
    paths = {"rollouts_path": "a/rollouts.jsonl"}

    response = await client.post("/v1/profile", params={"level": "summary", "filter": "task < 2"}, json=paths)

    assert response.json()["summaries"]["solver"]["tasks"] == 2


@pytest.mark.parametrize("query", [{"level": "summary"}, {"format": "html"}, {"format": "parquet", "level": "summary"}])
async def test_a_run_with_no_rollouts_has_a_defined_empty_view(
    client: httpx.AsyncClient, tmp_path: Path, query: dict[str, str]
) -> None:
    write_run(tmp_path, "empty", {}, state="running", counts=Counts(expected=4))

    assert (await get(client, "empty", **query)).content


async def test_two_runs_are_compared_agent_by_agent(client: httpx.AsyncClient, tmp_path: Path) -> None:
    write_run(tmp_path, "b", {task: [1.0, 1.0] for task in (0, 1, 2, 9)})

    response = await client.get("/v1/compare", params={"a": "a", "b": "b"})

    assert response.status_code == 200, response.text
    body = response.json()
    ComparisonBody.model_validate(body)
    found = body["agents"]["solver"]
    assert found["tasks"] == {"both": 3, "only_a": 1, "only_b": 1}
    assert found["difference"]["value"] == pytest.approx(0.5)
    assert found["wins"] == {"a": 0, "b": 2, "ties": 1}
    assert (body["a"]["run_id"], body["b"]["run_id"], body["forced"], body["only_a"]) == ("a", "b", [], [])


async def test_unlike_runs_are_compared_only_when_forced(client: httpx.AsyncClient, tmp_path: Path) -> None:
    write_run(tmp_path, "b", REWARDS, digests=Digests(input="others", overrides="x"))

    refused = await client.get("/v1/compare", params={"a": "a", "b": "b"})
    forced = await client.get("/v1/compare", params={"a": "a", "b": "b", "force": True})

    assert (refused.status_code, refused.json()["type"]) == (409, "urn:rollmill:problem:conflict")
    assert "the dataset" in refused.json()["detail"]
    assert forced.status_code == 200
    assert forced.json()["forced"] == ["the dataset (the task file)"]
    assert len(forced.json()["notes"]) == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"a": "a", "b": "nope"}, 404),
        ({"a": "a"}, 422),
        ({"a": "a", "b": ".."}, 422),
        ({"a": "a", "b": "a", "x": "1"}, 422),
    ],
)
async def test_a_wrong_comparison_is_a_problem(client: httpx.AsyncClient, query: dict[str, str], status: int) -> None:
    response = await client.get("/v1/compare", params=query)

    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


async def test_a_big_profile_does_not_hold_up_the_loop(client: httpx.AsyncClient, tmp_path: Path) -> None:
    write_run(tmp_path, "big", {task: [float((task + n) % 3 == 0) for n in range(8)] for task in range(4000)})
    big = asyncio.create_task(get(client, "big", level="summary", filter="num_rollouts > 1"))
    longest, answered = 0.0, 0
    while not big.done():
        began = time.perf_counter()
        assert (await client.get("/livez")).is_success
        longest, answered = max(longest, time.perf_counter() - began), answered + 1
        await asyncio.sleep(0.005)

    assert (await big).json()["summaries"]["solver"]["tasks"] == 4000
    assert answered > 5
    assert longest < 1.0
