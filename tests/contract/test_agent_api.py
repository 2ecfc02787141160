import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from openai import AsyncOpenAI

from rollmill.client.services import AgentClient, ResourcesClient, error_output
from rollmill.client.transport import Reply
from rollmill.config.settings import ServiceSettings
from rollmill.context import CallContext, reset_context, set_context
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import Row
from rollmill.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    OverloadedError,
    RollmillError,
    UnauthorizedError,
    UpstreamError,
)
from rollmill.openai.items import function_call
from rollmill.server import Episode, Model, Resources, ServiceApp, Session, ToolError, model_app, resources_app, tool
from rollmill.server import agent_app as host_agent
from rollmill.testing import FakeModel, service_client
from rollmill_services.agents.tool_loop.agent import ToolLoop, ToolLoopSettings
from rollmill_services.agents.tool_loop.app import create_app

SETTINGS = ServiceSettings()


class Shop(Resources):
    """One counter per session."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.open: list[str] = []
        self.closed: list[str] = []
        self.calls: list[str] = []

    async def seed_session(self, session: Session, row: Row) -> None:
        if error := row.get("seed_error"):
            raise RollmillError(error)
        self.open.append(session.id)

    async def close_session(self, session: Session) -> None:
        self.closed.append(session.id)

    async def verify(self, rollout: Rollout, session: Session) -> float:
        if rollout.field("verify_error"):
            raise OverloadedError("judge is busy", retryable=False)
        return float(session.state.get("count", 0))

    @tool
    async def buy(self, amount: int, session: Session) -> str:
        """Buy."""
        self.calls.append(f"buy {amount}")
        if amount < 0:
            raise ToolError("cannot buy less than nothing")
        if amount == 0:
            raise ZeroDivisionError("secret internals")
        session.state["count"] = session.state.get("count", 0) + amount
        return str(session.state["count"])


def agent_app() -> ServiceApp:
    return create_app(ToolLoopSettings(name="shopper", model="policy", resources="shop"))


class Setting:
    def __init__(self, model: Model, *, without: str = "") -> None:
        self.shop = Shop()
        self.model = model
        apps = {"policy": model_app(model), "shop": resources_app(self.shop), "shopper": agent_app()}
        self.apps = {name: app for name, app in apps.items() if name != without}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AgentClient]:
        async with service_client(self.apps) as client:
            self.client = client
            yield AgentClient(client)


ROW: JsonObject = {"id": 1, "responses_create_params": {"input": "go"}}


async def run(agent: AgentClient, row: JsonObject = ROW, *, key: str = "") -> JsonObject:
    verified: JsonObject = (await agent.run("shopper", dumps(row), key=key)).json()
    return verified


def buy(*amounts: int) -> list[JsonObject]:
    return [function_call("buy", f'{{"amount": {n}}}', f"c{n}") for n in amounts]


async def test_a_rollout_is_seeded_run_graded_and_closed() -> None:
    setting = Setting(FakeModel([buy(2, 3), "done"]))
    async with setting.running() as agent:
        verified = await run(agent)
    assert (verified["id"], verified["reward"]) == (1, 5.0)
    assert [item["type"] for item in verified["response"]["output"]] == [
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert setting.shop.closed == setting.shop.open
    assert len(setting.shop.closed) == 1


async def test_the_model_is_offered_the_declared_tools() -> None:
    model = FakeModel(["done"])
    async with Setting(model).running() as agent:
        await run(agent)
    assert [offered["name"] for offered in model.requests[0]["tools"]] == ["buy"]


@pytest.mark.parametrize("name", ["verify", "seed_session", "close_session", "../verify", "buy/../verify", "", "nope"])
async def test_an_undeclared_name_never_leaves_the_agent(name: str) -> None:
    setting = Setting(FakeModel([function_call(name, '{"reward": 1}', "c"), "done"]))
    async with setting.running() as agent:
        verified = await run(agent)
    output = loads(verified["response"]["output"][1]["output"])
    assert output == {"error": f"unknown tool {name!r}; the tools are: buy"}
    assert setting.shop.calls == []
    assert len(setting.shop.open) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("{torn", "not valid JSON"),
        ("[1]", "must be a JSON object"),
        ("", "amount: Field required"),
        ('{"amount": "x"}', "invalid arguments for buy: amount"),
        ('{"amount": -1}', "cannot buy less than nothing"),
        ('{"amount": 0}', "tool buy failed"),
    ],
)
async def test_what_is_wrong_with_a_call_is_told_to_the_model_and_the_rollout_goes_on(
    arguments: str, told: str
) -> None:
    setting = Setting(FakeModel([function_call("buy", arguments, "c"), "done"]))
    async with setting.running() as agent:
        verified = await run(agent)
    output = verified["response"]["output"][1]["output"]
    assert told in loads(output)["error"]
    assert "secret" not in output
    assert verified["reward"] == 0.0


def test_a_process_that_serves_only_an_agent_knows_the_errors_of_tools() -> None:
    code = """
import rollmill.server.agent_host
from rollmill.errors import from_problem
error = from_problem({"type": "urn:rollmill:problem:tool-error"}, 400)
assert error.slug == "tool-error", type(error)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_repeat_under_the_same_key_runs_once() -> None:
    setting = Setting(FakeModel([buy(2), "done"]))
    transport = httpx.ASGITransport(app=setting.apps["shopper"])
    headers = {"idempotency-key": "k"}
    async with setting.running(), httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
        first, again = [(await client.post("/run", json=ROW, headers=headers)).json() for _ in range(2)]
    assert first == again
    assert len(setting.shop.open) == 1


async def test_a_rollout_repeated_on_another_agent_gets_no_outputs_of_the_first_ones_session() -> None:
    setting = Setting(FakeModel([buy(2), "done", buy(7), "done"]))
    setting.apps["other"] = create_app(ToolLoopSettings(name="other", model="policy", resources="shop"))
    async with setting.running() as agent:
        first = await run(agent, key="k")
        second = (await agent.run("other", dumps(ROW), key="k")).json()
    assert (first["reward"], second["reward"]) == (2.0, 7.0)
    assert setting.shop.calls == ["buy 2", "buy 7"]
    assert len(setting.shop.closed) == 2


async def until_closed(shop: Shop) -> None:
    async with asyncio.timeout(10):
        while not shop.open or len(shop.closed) < len(shop.open):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        (UnauthorizedError("bad key"), 401, False),
        (ConnectionLostError("engine died"), 502, True),
        (UpstreamError("engine failed", upstream_status=500, upstream_type="x"), 500, False),
    ],
)
async def test_a_failure_of_the_model_names_the_model(error: RollmillError, status: int, retryable: bool) -> None:
    setting = Setting(FakeModel([error]))
    async with setting.running() as agent:
        with pytest.raises(UpstreamError) as caught:
            await run(agent)
        await until_closed(setting.shop)
    assert type(caught.value) is UpstreamError
    extensions = caught.value.extensions
    assert (extensions["boundary"], extensions["service"]) == ("model", "policy")
    assert (extensions["upstream_status"], extensions["retryable"]) == (status, retryable)


async def test_overload_of_the_model_keeps_its_meaning() -> None:
    setting = Setting(FakeModel([OverloadedError("busy", retry_after=1000, retryable=False)]))
    async with setting.running() as agent:
        with pytest.raises(OverloadedError) as caught:
            await run(agent)
        await until_closed(setting.shop)
    assert caught.value.extensions["boundary"] == "model"
    assert caught.value.retry_after == 1000


@pytest.mark.parametrize("field", ["seed_error", "verify_error"])
async def test_a_failure_of_the_resources_names_the_resources(field: str) -> None:
    setting = Setting(FakeModel(["done"]))
    async with setting.running() as agent:
        with pytest.raises(RollmillError) as caught:
            await run(agent, ROW | {field: "broken"})
        if field == "verify_error":
            await until_closed(setting.shop)
    assert (caught.value.extensions["boundary"], caught.value.extensions["service"]) == ("resources", "shop")


async def test_a_response_whose_grading_failed_is_not_lost() -> None:
    setting = Setting(FakeModel(["done"]))
    async with setting.running() as agent:
        with pytest.raises(RollmillError) as ungraded:
            await run(agent, ROW | {"verify_error": "broken"})
        with pytest.raises(RollmillError) as unseeded:
            await run(agent, ROW | {"seed_error": "broken"})

    assert set(ungraded.value.extensions["unverified"]) == {"response"}
    assert ungraded.value.extensions["unverified"]["response"]["output"][0]["content"][0]["text"] == "done"
    assert "unverified" not in unseeded.value.extensions


async def test_a_huge_response_whose_grading_failed_is_not_kept() -> None:
    setting = Setting(FakeModel(["x" * 5_000_000]))
    async with setting.running() as agent:
        with pytest.raises(RollmillError) as caught:
            await run(agent, ROW | {"verify_error": "broken"})

    assert "unverified" not in caught.value.extensions


@pytest.mark.parametrize(("missing", "boundary"), [("policy", "model"), ("shop", "resources")])
async def test_a_service_that_is_not_there_is_named(missing: str, boundary: str) -> None:
    setting = Setting(FakeModel(["done"]), without=missing)
    async with setting.running() as agent:
        with pytest.raises(UpstreamError, match=f"no live service is called '{missing}'") as caught:
            await run(agent)
    extensions = caught.value.extensions
    assert (extensions["boundary"], extensions["upstream_type"]) == (boundary, "service-not-found")


class Stuck(FakeModel):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(["x"])
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def respond(self, request: JsonObject) -> JsonObject:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return {}


async def test_a_cancelled_rollout_cancels_the_model_call_and_closes_its_session() -> None:
    model = Stuck()
    setting = Setting(model)
    async with setting.running() as agent:
        rollout = asyncio.create_task(run(agent, key="k"))
        await model.asked.wait()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        assert model.cancelled.is_set()
        await until_closed(setting.shop)


async def test_the_deadline_ends_the_rollout_and_closes_its_session() -> None:
    model = Stuck()
    setting = Setting(model)
    async with setting.running() as agent:
        token = set_context(CallContext("abc").sooner(0.1))
        try:
            with pytest.raises(DeadlineError):
                await run(agent)
        finally:
            reset_context(token)
        assert model.cancelled.is_set()
        await until_closed(setting.shop)


async def test_many_rollouts_at_once_keep_their_sessions_apart() -> None:
    def answer(request: JsonObject) -> str | list[JsonObject]:
        items = request["input"]
        return "done" if items[-1]["type"] == "function_call_output" else buy(int(items[0]["content"]))

    setting = Setting(FakeModel(answer))
    async with setting.running() as agent:
        rows = [{"responses_create_params": {"input": str(n)}} for n in range(1, 21)]
        tasks = [asyncio.create_task(run(agent, row, key=str(n))) for n, row in enumerate(rows)]
        rewards = [(await task)["reward"] for task in tasks]
    assert rewards == [float(n) for n in range(1, 21)]
    assert sorted(setting.shop.closed) == sorted(setting.shop.open)


async def test_responses_work_with_the_public_client_streamed_or_not() -> None:
    setting = Setting(FakeModel([buy(2), "done"]))
    async with setting.running():
        transport = httpx.ASGITransport(app=setting.apps["shopper"])
        async with httpx.AsyncClient(transport=transport) as client:
            http: JsonValue = client  # its own httpx is another distribution of the same library
            openai = AsyncOpenAI(api_key="x", base_url="http://a/v1", http_client=http, max_retries=0)
            assert (await openai.responses.create(model="m", input="go")).output_text == "done"
            stream = await openai.responses.create(model="m", input="go", stream=True)
            assert [event.type async for event in stream][-1] == "response.completed"
        await until_closed(setting.shop)


async def test_metrics_are_those_of_the_environment() -> None:
    graded = [{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0}]
    setting = Setting(FakeModel(["done"]))
    async with setting.running() as agent:
        answer = await agent.aggregate_metrics("shopper", dumps({"verify_responses": graded}))
    assert answer["agent_metrics"]["mean/reward"] == 1.0


async def test_the_openapi_document_lists_the_hot_routes() -> None:
    setting = Setting(FakeModel(["done"]))
    async with setting.running():
        reply: Reply = await setting.client.call("shopper", "/openapi.json", method="GET")
    paths = reply.json()["paths"]
    for path in ("/run", "/v1/responses", "/aggregate_metrics"):
        assert "application/json" in paths[path]["post"]["requestBody"]["content"]
    assert setting.apps["shopper"].runtime.capabilities == {"model": "policy", "resources": "shop"}


async def test_a_lost_resources_server_is_no_tool_error() -> None:
    setting = Setting(FakeModel(["done"]))
    async with setting.running():
        resources = ResourcesClient(setting.client)
        session = await resources.seed("shop", {})
        session.headers["x-rollmill-session"] = "forged"
        with pytest.raises(RollmillError, match="not issued"):
            await resources.call_tool(session, "buy", {"amount": 1}, key="k")
        session.replica.info = session.replica.info.model_copy(update={"url": "http://gone"})
        with pytest.raises(ConnectError):
            await resources.call_tool(session, "buy", {"amount": 1}, key="k")


def test_errors_are_told_to_models_as_json() -> None:
    assert loads(error_output('a "quoted" thing')) == {"error": 'a "quoted" thing'}


async def test_an_agent_opens_what_it_needs_before_it_serves_and_releases_it_at_the_end() -> None:
    class Connected(ToolLoop):
        def __init__(self) -> None:
            super().__init__(ToolLoopSettings(name="shopper", model="policy", resources="shop"))
            self.log: list[str] = []

        async def startup(self) -> None:
            self.log.append("startup")

        async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
            self.log.append("respond")
            return await super().respond(request, episode)

        async def shutdown(self) -> None:
            self.log.append("shutdown")

    connected, setting = Connected(), Setting(FakeModel(["done"]))
    setting.apps["shopper"] = host_agent(connected)
    async with setting.running() as agent:
        await run(agent)
    assert connected.log == ["startup", "respond", "shutdown"]
