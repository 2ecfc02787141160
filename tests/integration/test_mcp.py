"""Declared tools over the Model Context Protocol: the official client, real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import httpx2
import pytest
from fastapi import FastAPI, Request
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from pydantic import SecretStr

from rollmill.client.services import AgentClient
from rollmill.config.settings import ServiceSettings
from rollmill.config.topology import parse_topology
from rollmill.contracts.json import JsonObject, dumps
from rollmill.errors import ConfigError, ToolError, UpstreamError
from rollmill.server import Resources, Session, resources_app, tool
from rollmill.testing import FakeEpisode, asgi_client, service_client
from rollmill_services.agents.remote.agent import Remote, RemoteSettings
from rollmill_services.agents.remote.app import create_app as create_remote
from rollmill_services.resources.counter.app import create_app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Serve
    from tests.integration.conftest import NetworkTopology

SERVICE_TOKEN = "service-token"
SETTINGS = ServiceSettings(name="counter", token=SecretStr(SERVICE_TOKEN), serve_mcp=True)
MODES = ["auto", "legacy"]


@asynccontextmanager
async def service(serve: "Serve", settings: ServiceSettings = SETTINGS) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {SERVICE_TOKEN}"}
    async with serve(create_app(settings)) as url, httpx.AsyncClient(base_url=url, headers=headers) as client:
        yield client


async def seeded(client: httpx.AsyncClient, count: int = 3) -> tuple[str, str]:
    """Open a session and return its signed id and its token."""
    answer = await client.post("/seed_session", json={"initial_count": count, "expected_count": 0})
    client.cookies.clear()
    return answer.headers["x-rollmill-session"], answer.headers["x-rollmill-mcp-token"]


@asynccontextmanager
async def connected(url: str, token: str, mode: str = "auto") -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as wire,
        Client(streamable_http_client(url, http_client=wire), mode=mode) as client,
    ):
        yield client


def text(result: object) -> tuple[str, bool]:
    assert isinstance(result, CallToolResult)
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text, bool(result.is_error)


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_lists_and_calls_the_tools_of_its_session(serve: "Serve", mode: str) -> None:
    async with service(serve) as client:
        session, token = await seeded(client)
        async with connected(f"{client.base_url}/mcp", token, mode) as mcp:
            tools = (await mcp.list_tools()).tools
            added = text(await mcp.call_tool("increment_counter", {"count": 4}))
            told = text(await mcp.call_tool("get_counter_value", {}))
        verified = await client.post("/verify", json={"expected_count": 7}, headers={"x-rollmill-session": session})

    assert {each.name: each.input_schema["properties"] for each in tools} == {
        "increment_counter": {"count": {"type": "integer"}},
        "get_counter_value": {},
    }
    assert [each.description for each in tools] == ["Add a whole number to the counter.", "Read the counter."]
    assert (added, told) == (('{"success":true}', False), ('{"count":7}', False))
    assert verified.json()["reward"] == 1.0


async def test_sessions_do_not_see_each_other(serve: "Serve") -> None:
    async with service(serve) as client:
        tokens = [(await seeded(client, count))[1] for count in (10, 20)]
        told = []
        for token in tokens:
            async with connected(f"{client.base_url}/mcp", token) as mcp:
                await mcp.call_tool("increment_counter", {"count": 1})
                told.append(text(await mcp.call_tool("get_counter_value", {})))
    assert told == [('{"count":11}', False), ('{"count":21}', False)]


@pytest.mark.parametrize("name", ["verify", "seed_session", "close_session", "../verify", ""])
async def test_only_declared_tools_can_be_called(serve: "Serve", name: str) -> None:
    async with service(serve) as client, connected(f"{client.base_url}/mcp", (await seeded(client))[1]) as mcp:
        said, failed = text(await mcp.call_tool(name, {}))
    assert failed
    assert "the tools are: increment_counter, get_counter_value" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({}, "count: Field required"), ({"count": "x"}, "valid integer"), ({"count": 2**60}, "must stay between")],
)
async def test_wrong_arguments_and_refusals_are_told_to_the_model(
    serve: "Serve", arguments: JsonObject, told: str
) -> None:
    async with service(serve) as client, connected(f"{client.base_url}/mcp", (await seeded(client))[1]) as mcp:
        said, failed = text(await mcp.call_tool("increment_counter", arguments))
    assert failed
    assert told in said


class Fragile(Resources):
    """A tool that refuses, and one that breaks."""

    async def verify(self, rollout: object, session: Session) -> float:
        return 0.0

    @tool
    async def refuse(self) -> str:
        """Refuse."""
        raise ToolError("not today")

    @tool
    async def crash(self) -> str:
        """Break."""
        raise ZeroDivisionError("secret internals")


async def test_a_tool_that_breaks_tells_no_internals(serve: "Serve") -> None:
    settings = SETTINGS.model_copy(update={"name": ""})
    async with serve(resources_app(Fragile(settings))) as url:
        async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {SERVICE_TOKEN}"}) as client:
            token = (await seeded(client))[1]
        async with connected(f"{url}/mcp", token) as mcp:
            assert text(await mcp.call_tool("refuse", {})) == ("not today", True)
            assert text(await mcp.call_tool("crash", {})) == ("tool crash failed", True)


async def test_the_token_ends_with_its_session(serve: "Serve") -> None:
    async with service(serve) as client:
        session, token = await seeded(client)
        headers = {"authorization": f"Bearer {token}"}
        before = await client.post("/mcp", json={}, headers=headers)
        await client.post("/close_session", headers={"x-rollmill-session": session})
        after = await client.post("/mcp", json={}, headers=headers)
    assert before.status_code not in (401, 404)
    assert (after.status_code, after.json()["type"]) == (404, "urn:rollmill:problem:session-not-found")


async def test_a_sessions_token_opens_nothing_else_and_nothing_else_opens_the_endpoint(serve: "Serve") -> None:
    async with service(serve) as client:
        session, token = await seeded(client)
        of_session = {"authorization": f"Bearer {token}"}
        for path in ("/verify", "/get_counter_value", "/seed_session", "/version"):
            answer = await client.post(path, json={}, headers=of_session | {"x-rollmill-session": session})
            assert answer.status_code == 401, path
        for wrong in (SERVICE_TOKEN, session, token[:-1], f"{token}0", "x", "é"):
            sent = {b"authorization": f"Bearer {wrong}".encode()}
            assert (await client.post("/mcp", json={}, headers=sent)).status_code == 401, wrong
        stolen = await client.post("/get_counter_value", json={}, headers={"x-rollmill-session": token})
        assert stolen.status_code == 404


async def test_other_methods_are_refused_and_a_large_body_too(serve: "Serve") -> None:
    async with service(serve, SETTINGS.model_copy(update={"max_body_bytes": 2000})) as client:
        token = (await seeded(client))[1]
        headers = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}
        assert (await client.get("/mcp", headers=headers)).status_code == 405
        assert (await client.delete("/mcp", headers=headers)).status_code == 405
        assert (await client.post("/mcp", json={"x": "y" * 3000}, headers=headers)).status_code == 413
        assert (await client.post("/mcp", content=b"{torn", headers=headers)).status_code == 400


async def test_without_the_setting_there_is_no_endpoint_and_no_token() -> None:
    async with asgi_client(create_app(ServiceSettings())) as client:
        seeding = await client.post("/seed_session", json={"initial_count": 0, "expected_count": 0})
        assert "x-rollmill-mcp-token" not in seeding.headers
        assert (await client.post("/mcp", json={})).status_code == 404


async def test_without_the_library_the_service_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.server.mcp_endpoint.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"rollmill\[mcp\]"):
        async with asgi_client(create_app(SETTINGS)):
            pass


def visitor(seen: list[JsonObject]) -> FastAPI:
    """An agent of somebody else's: it calls a tool by MCP and repeats its request's tools, as the API does."""
    app = FastAPI()

    @app.post("/v1/responses")
    async def respond(request: Request) -> JsonObject:
        body = await request.json()
        seen.append(body)
        entry = body["tools"][-1]
        async with connected(entry["server_url"], entry["authorization"]) as mcp:
            await mcp.call_tool("increment_counter", {"count": 5})
        return {"object": "response", "output": [], "tools": body["tools"]}

    return app


TOPOLOGY = """
services:
  counter: {{kind: resources, use: counter, settings: {{serve_mcp: true}}}}
  far: {{kind: agent, use: remote, settings: {{resources: counter, base_url: "{url}/v1", offer_tools: true}}}}
"""
ROW: JsonObject = {"responses_create_params": {"input": "Add 5."}, "initial_count": 1, "expected_count": 6}


async def test_a_remote_agent_calls_the_tools_of_its_session(
    serve: "Serve", network_topology: "NetworkTopology", tmp_path: "Path"
) -> None:
    seen: list[JsonObject] = []
    async with serve(visitor(seen)) as url:
        topology = parse_topology(TOPOLOGY.format(url=url), base_dir=tmp_path)
        async with network_topology(topology) as network:
            reply = await AgentClient(network.client).run("far", dumps(ROW), key="k", timeout=20)
            [server] = network.urls["counter"]
    verified = reply.json()
    assert (verified["reward"], verified["final_count"]) == (1.0, 6)
    [entry] = seen[0]["tools"]
    assert (entry["type"], entry["server_label"], entry["server_url"]) == ("mcp", "counter", f"{server}/mcp")
    assert entry["authorization"] not in reply.body.decode()


@pytest.mark.parametrize(("mcp", "told"), [(False, "`serve_mcp: true`"), (True, "`rollmill up`")])
async def test_tools_that_cannot_be_reached_are_an_error_that_names_the_fix(mcp: bool, told: str) -> None:
    remote = RemoteSettings(name="far", resources="counter", base_url="http://127.0.0.1:9/v1", offer_tools=True)
    apps = {"counter": create_app(ServiceSettings(serve_mcp=mcp)), "far": create_remote(remote)}
    async with service_client(apps) as client:
        with pytest.raises((ConfigError, UpstreamError), match=told):
            await AgentClient(client).run("far", dumps(ROW), key="k")


async def test_an_agent_is_tested_without_any_server(serve: "Serve") -> None:
    seen: list[JsonObject] = []
    app = FastAPI()

    @app.post("/v1/responses")
    async def respond(request: Request) -> JsonObject:
        seen.append(await request.json())
        return {"output": []}

    async with serve(app) as url:
        agent = Remote(RemoteSettings(name="far", resources="r", base_url=f"{url}/v1", offer_tools=True))
        await agent.respond({"input": "x", "tools": [{"type": "web_search"}]}, FakeEpisode(["unused"]))
        await agent.shutdown()
    assert [each["type"] for each in seen[0]["tools"]] == ["web_search", "mcp"]
