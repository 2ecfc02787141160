"""The Gymnasium kind of environment over its endpoints, and played by its agent."""

import asyncio
import math
from collections.abc import AsyncIterator

import httpx
import pytest

from rollmill.client.services import AgentClient
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.errors import ConflictError, InputError, UpstreamError
from rollmill.server import Environment, EnvironmentSettings, ServiceApp, Session, Step, model_app, resources_app
from rollmill.testing import FakeModel, asgi_client, service_client
from rollmill_services.agents.gymnasium_loop.agent import GymnasiumLoopSettings
from rollmill_services.agents.gymnasium_loop.app import create_app


class Stairs(Environment):
    """Climb to the row's height: `up` is worth 1, anything else 0."""

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        super().__init__(settings)
        self.closed: list[str] = []
        self.steps = 0

    async def seed_session(self, session: Session, row: Row) -> None:
        if "height" not in row:
            raise InputError("the row has no 'height'")

    async def reset(self, session: Session) -> tuple[JsonValue, JsonObject]:
        session.state["at"] = 0
        return "at the bottom", {"height": session.row["height"]}

    async def step(self, action: str, session: Session) -> Step:
        self.steps += 1
        if action == "nan":
            return Step("?", math.nan)
        if action == "break":
            raise ZeroDivisionError("secret internals")
        session.state["at"] += action == "up"
        return Step(f"step {session.state['at']}", float(action == "up"), session.state["at"] == session.row["height"])

    async def close_session(self, session: Session) -> None:
        self.closed.append(session.id)


@pytest.fixture
def stairs() -> Stairs:
    return Stairs()


@pytest.fixture
async def client(stairs: Stairs) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(resources_app(stairs)) as client:
        yield client


async def seeded(client: httpx.AsyncClient, height: int = 2) -> dict[str, str]:
    answer = await client.post("/seed_session", json={"height": height})
    assert answer.status_code == 200
    client.cookies.clear()
    return {"x-rollmill-session": answer.headers["x-rollmill-session"]}


async def test_an_episode_is_played_and_graded(client: httpx.AsyncClient, stairs: Stairs) -> None:
    session = await seeded(client)
    assert (await client.post("/reset", headers=session)).json() == {
        "observation": "at the bottom",
        "info": {"height": 2},
    }
    steps = [(await client.post("/step", json={"action": a}, headers=session)).json() for a in ("up", "down", "up")]
    assert steps[0] == {"observation": "step 1", "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
    assert [step["terminated"] for step in steps] == [False, False, True]
    verified = (
        await client.post("/verify", json={"height": 2}, headers=session | {"x-rollmill-close-session": "1"})
    ).json()
    assert verified == {"height": 2, "reward": 2.0, "steps": 3, "terminated": True, "truncated": False}
    assert len(stairs.closed) == 1


async def test_a_reset_without_a_session_opens_one_for_its_row(client: httpx.AsyncClient) -> None:
    answer = await client.post("/reset", json={"height": 1})
    session = {"x-rollmill-session": answer.headers["x-rollmill-session"]}
    client.cookies.clear()
    assert (await client.post("/step", json={"action": "up"}, headers=session)).json()["terminated"]
    assert (await client.post("/reset", json={})).status_code == 422


async def test_a_second_reset_begins_anew(client: httpx.AsyncClient) -> None:
    session = await seeded(client)
    for _ in range(2):
        await client.post("/reset", headers=session)
        await client.post("/step", json={"action": "up"}, headers=session)
    verified = (await client.post("/verify", json={}, headers=session)).json()
    assert (verified["reward"], verified["steps"]) == (1.0, 1)


async def test_a_step_that_is_sent_again_under_its_key_is_not_taken_twice(
    client: httpx.AsyncClient, stairs: Stairs
) -> None:
    session = await seeded(client)
    await client.post("/reset", headers=session)
    sent = session | {"idempotency-key": "one"}
    first, again = [(await client.post("/step", json={"action": "up"}, headers=sent)).json() for _ in range(2)]
    assert first == again
    assert stairs.steps == 1


@pytest.mark.parametrize(
    ("before", "action", "status", "told"),
    [
        ("", "up", 409, "no episode has begun"),
        ("reset", 7, 422, "'action' must be text"),
        ("reset", None, 422, "'action' must be text"),
        ("reset", "nan", 500, "not finite"),
        ("reset", "break", 500, "the service failed"),
    ],
)
async def test_a_step_that_cannot_be_taken_is_a_problem_that_says_why(
    client: httpx.AsyncClient, before: str, action: JsonValue, status: int, told: str
) -> None:
    session = await seeded(client)
    if before:
        await client.post("/reset", headers=session)
    answer = await client.post("/step", json={"action": action}, headers=session)
    assert answer.status_code == status
    assert told in answer.json()["detail"]
    assert "secret" not in answer.text


async def test_no_step_is_taken_after_the_end_nor_without_a_session(client: httpx.AsyncClient) -> None:
    session = await seeded(client, height=1)
    await client.post("/reset", headers=session)
    await client.post("/step", json={"action": "up"}, headers=session)
    over = await client.post("/step", json={"action": "up"}, headers=session)
    assert (over.status_code, over.json()["detail"]) == (409, "the episode is over: call /reset first")
    assert (await client.post("/step", json={"action": "up"})).status_code == 404


async def test_steps_that_are_sent_at_the_same_time_are_taken_one_after_the_other() -> None:
    class Slow(Stairs):
        async def step(self, action: str, session: Session) -> Step:
            await asyncio.sleep(0.01)
            return await super().step(action, session)

    slow, session = Slow(), Session("s", {"height": 1})
    await slow.begin(session)
    first, second = [asyncio.create_task(slow.advance("up", session)) for _ in range(2)]
    assert (await first).terminated
    with pytest.raises(ConflictError, match="the episode is over"):
        await second
    assert slow.steps == 1


async def test_a_session_without_an_episode_has_no_verdict(client: httpx.AsyncClient) -> None:
    session = await seeded(client)
    answer = await client.post("/verify", json={}, headers=session)
    assert (answer.status_code, answer.json()["detail"]) == (409, "no episode was played in this session")
    assert (await client.post("/verify", json={"height": 1})).status_code == 404


async def test_both_routes_are_on_the_openapi_page(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert {"/reset", "/step"} <= set(paths)


def apps(stairs: Stairs, model: FakeModel) -> dict[str, ServiceApp]:
    agent = create_app(GymnasiumLoopSettings(name="player", model="policy", resources="stairs"))
    return {"policy": model_app(model), "stairs": resources_app(stairs), "player": agent}


@pytest.mark.parametrize(("counted", "reward"), [("sum", 2.0), ("last", 1.0)])
async def test_the_agent_plays_a_rollout_and_closes_its_session(counted: str, reward: float) -> None:
    stairs = Stairs(EnvironmentSettings.parse({"reward": counted}, where="settings"))
    async with service_client(apps(stairs, FakeModel(["up", "wait", "up"]))) as client:
        reply = await AgentClient(client).run("player", dumps({"height": 2}), key="k")
    verified = reply.json()
    assert (verified["reward"], verified["steps"], verified["terminated"]) == (reward, 3, True)
    assert [item["role"] for item in verified["response"]["output"]] == ["user", "assistant"] * 3 + ["user"]
    assert len(stairs.closed) == 1


async def test_a_wrong_row_fails_before_any_model_call() -> None:
    model = FakeModel(["up"])
    async with service_client(apps(Stairs(), model)) as client:
        with pytest.raises(UpstreamError, match="height") as caught:
            await AgentClient(client).run("player", dumps({}), key="k")
    assert caught.value.extensions["boundary"] == "resources"
    assert model.requests == []
