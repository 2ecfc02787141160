"""A run is profiled while it is being collected, and its column file is there when it is done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rollmill.artifacts.columns import open_column_file, read_columns
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.live import LiveProfile
from rollmill.artifacts.reader import read_rollouts
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.runs import RunOptions
from rollmill.profiling import profile
from rollmill.server import Agent, AgentSettings, Episode, Resources, Session, agent_app, model_app, resources_app
from rollmill.testing import FakeModel, service_client
from rollmill_services.profiler.app import create_app
from rollmill_services.profiler.settings import ProfilerSettings

TASKS, REPEATS = 10, 4


class Graded(Resources):
    """Grades by the length of the answer, under a name of its own."""

    score_fields = ("grade",)
    answer_field = "said"

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        return Verdict(0.0, {"grade": float(len(rollout.text) % 2), "said": rollout.text})


class AskOnce(Agent):
    """Asks the model once."""

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)


@pytest.fixture
def plan(tmp_path: Path) -> CollectionPlan:
    tasks = tmp_path / "tasks.jsonl"
    rows = [{"responses_create_params": {"input": "x" * (n + 1)}} for n in range(TASKS)]
    tasks.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    options = RunOptions(agent="solver", num_repeats=REPEATS, concurrency=2)
    return CollectionPlan(tasks, tmp_path / "x.jsonl", options, run_id="x")


@asynccontextmanager
async def agents() -> AsyncIterator[ServiceClient]:
    settings = AgentSettings(name="solver", model="policy", resources="grader")
    apps = {
        "policy": model_app(FakeModel(lambda request: str(request["input"]))),
        "grader": resources_app(Graded()),
        "solver": agent_app(AskOnce(settings)),
    }
    async with service_client(apps) as client:
        yield client


async def test_a_run_is_profiled_while_it_is_collected(plan: CollectionPlan) -> None:
    files = RunFiles.at(plan.output)
    live, seen = LiveProfile(files), list[int]()

    def listen() -> None:
        live.refresh()
        summary = live.summary()
        seen.append(summary["rollouts"])
        assert summary["expected_rollouts"] == TASKS * REPEATS
        assert sum(agent["rollouts"] for agent in summary["agents"].values()) == summary["rollouts"]

    async with agents() as client:
        await Collector(plan, client, on_commit=listen).run()

    live.refresh()
    scratch = LiveProfile(files)
    scratch.refresh()
    assert (seen[-1], seen) == (TASKS * REPEATS, sorted(seen))
    [followed], [read] = live.summary()["agents"].values(), scratch.summary()["agents"].values()
    assert followed["metrics"] == pytest.approx(read["metrics"])
    assert followed["solve_rate"] == read["solve_rate"]
    estimates = followed["estimates"]
    assert estimates["mean_reward"]["value"] == pytest.approx(0.5)  # of the grade, which is the score
    assert estimates["zero_variance_share"]["value"] == 1.0


async def test_the_column_file_of_a_finished_run_agrees_with_its_rollouts(plan: CollectionPlan) -> None:
    async with agents() as client:
        collector = Collector(plan, client)
        await collector.run()
    files = collector.files

    stored = open_column_file(files, AnswerFields({"solver": "said"}))

    assert stored is not None
    assert (stored.rows, stored.end) == (TASKS * REPEATS, files.rollouts.stat().st_size)
    columns = read_columns(files)
    assert sorted(columns.frame["answer"].unique()) == sorted("x" * (n + 1) for n in range(TASKS))
    assert (columns.frame["seconds"] > 0).all()
    assert (columns.frame["turns"] == 1).all()
    assert columns.expected == {"solver": TASKS * REPEATS}
    assert {row["_rollmill"]["attempt"] for row in read_rollouts(files.rollouts)} == {0}
    classic = profile(files.inputs, files.rollouts)
    assert not [name for name in map(str, classic.agents.columns) if "_rollmill" in name or "seconds" in name]


async def test_the_profiler_answers_while_the_run_goes_on(plan: CollectionPlan, tmp_path: Path) -> None:
    app = create_app(ProfilerSettings(data_dir=tmp_path))
    transport, url = httpx.ASGITransport(app=app), "http://profiler"
    told: list[JsonObject] = []
    classic: JsonObject = {}
    async with agents() as client, app.running(), httpx.AsyncClient(transport=transport, base_url=url) as http:
        run = asyncio.create_task(Collector(plan, client).run())
        while not told or told[-1]["state"] != "finished":
            response = await http.get("/v1/runs/x/live")
            if response.status_code == 404:
                await asyncio.sleep(0.01)  # not started yet
                continue
            told.append(response.raise_for_status().json())
            classic = (await http.get("/v1/runs/x/profile")).raise_for_status().json()
            assert classic["completion"]["completed_rollouts"] >= told[-1]["rollouts"] - 2
        await run

    assert told[-1]["run_id"] == "x"
    assert told[-1]["rollouts"] == told[-1]["agents"]["solver"]["rollouts"] == TASKS * REPEATS
    assert classic["completion"]["reward_profile_completion_pct"] == 100.0
