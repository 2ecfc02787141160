"""An agent outside of Rollmill, over real sockets: what it answers is verified, and what it does wrong is data."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from fastapi import FastAPI, Request, Response
from pydantic import SecretStr

import rollmill
from rollmill import ServiceSettings
from rollmill.client.services import AgentClient
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rollouts import Rollout
from rollmill.errors import ConfigError, OverloadedError, RollmillError, is_retryable
from rollmill.server import Resources, Session, model_app, resources_app
from rollmill.testing import FakeModel, service_client
from rollmill_services.agents.remote.agent import RemoteSettings
from rollmill_services.agents.remote.app import create_app

if TYPE_CHECKING:
    from tests.conftest import Serve

Answer: TypeAlias = tuple[int, bytes, dict[str, str]]
KEY = "a-secret-key"


class Exact(Resources):
    """Right when the answer is 42."""

    async def verify(self, rollout: Rollout, session: Session) -> float:
        return float(rollout.text == "42")


def settings(url: str, **more: object) -> RemoteSettings:
    return RemoteSettings.parse({"name": "far", "resources": "exact", "base_url": url, **more}, where="settings")


async def run(url: str, **more: object) -> JsonObject:
    apps = {"exact": resources_app(Exact()), "far": create_app(settings(url, **more))}
    row = {"id": 7, "responses_create_params": {"input": "6*7?"}}
    async with service_client(apps) as client:
        verified: JsonObject = (await AgentClient(client).run("far", dumps(row), key="k", timeout=20)).json()
    return verified


async def failure(url: str, **more: object) -> RollmillError:
    with pytest.raises(RollmillError) as caught:
        await run(url, **more)
    assert caught.value.extensions["boundary"] == "agent"
    return caught.value


def answering(*answers: Answer) -> FastAPI:
    """An application that gives these answers in turn, the last one for ever."""
    app, left = FastAPI(), list(answers)

    @app.post("/v1/responses")
    async def respond(request: Request) -> Response:
        status, body, headers = left.pop(0) if len(left) > 1 else left[0]
        return Response(body, status, headers, media_type="application/json")

    return app


async def test_the_answer_of_the_remote_agent_is_verified(serve: "Serve") -> None:
    model = FakeModel(["42"], ServiceSettings(token=SecretStr(KEY)))
    async with serve(model_app(model)) as url:
        verified = await run(f"{url}/v1/", api_key=KEY, model="their-agent")
    assert (verified["id"], verified["reward"]) == (7, 1.0)
    assert model.requests == [{"input": "6*7?", "model": "their-agent"}]


@pytest.mark.parametrize(
    ("answer", "told", "retryable"),
    [
        ((500, b"oops", {}), "HTTP 500: oops", True),
        ((502, b"", {}), "HTTP 502", True),
        ((400, b'{"error": "no"}', {}), "HTTP 400", False),
        ((404, b"", {}), "HTTP 404", False),
        ((401, b'{"type": "urn:rollmill:problem:invalid-request"}', {}), "HTTP 401", False),
        ((307, b"", {"location": "http://127.0.0.1:9/"}), "HTTP 307", False),
        ((200, b"hello", {}), "not JSON: hello", False),
        ((200, b"[]", {}), "no Responses object", False),
        ((200, b'{"output": null}', {}), "no Responses object", False),
        ((200, b'{"output": ["text"]}', {}), "something else than items", False),
        ((200, b'{"output": [], "status": "queued"}', {}), "not finished", False),
        ((200, b'{"output": [], "status": "failed", "error": {"message": "tool broke"}}', {}), "tool broke", True),
    ],
)
async def test_what_the_remote_agent_does_wrong_is_told_as_its_failure(
    serve: "Serve", answer: Answer, told: str, retryable: bool
) -> None:
    async with serve(answering(answer)) as url:
        error = await failure(f"{url}/v1")
    assert told in error.detail
    assert (error.status, is_retryable(error)) == (502, retryable)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_agent_that_asks_for_less_load_is_a_retryable_failure_with_its_time(
    serve: "Serve", status: int
) -> None:
    async with serve(answering((status, b"slow down", {"retry-after": "3"}))) as url:
        error = await failure(f"{url}/v1")
    assert isinstance(error, OverloadedError)
    assert (is_retryable(error), error.retry_after) == (True, 3.0)


TOPOLOGY = """
services:
  words: {{kind: resources, use: string_match}}
  far: {{kind: agent, use: remote, settings: {{resources: words, base_url: "{url}/v1"}}}}
"""


async def test_a_run_tries_again_and_keeps_what_cannot_be_helped_as_a_failure(serve: "Serve", tmp_path: Path) -> None:
    good: Answer = (200, dumps({"output": [{"type": "message", "role": "assistant", "content": "42"}]}), {})
    row = {"responses_create_params": {"input": "6*7?"}, "expected_answer": "42", "extraction_mode": "full_response"}
    async with serve(answering((500, b"oops", {}), good, (400, b"never", {}))) as url:
        topology = tmp_path / "topology.yaml"
        topology.write_text(TOPOLOGY.format(url=url), encoding="utf-8")
        run = rollmill.collect([{**row, "task": 1}, {**row, "task": 2}], topology=topology, agent="far", concurrency=1)
        results = [result async for _, result in run]
    assert [result["reward"] for result in results if isinstance(result, dict)] == [1.0]
    [failed] = [result for result in results if isinstance(result, rollmill.Failure)]
    assert (failed.boundary, failed.retryable) == ("agent", False)
    assert "never" in failed.detail


async def test_an_agent_that_cannot_be_reached_is_a_retryable_failure() -> None:
    error = await failure("http://127.0.0.1:9/v1")
    assert is_retryable(error)


async def test_an_agent_that_takes_too_long_is_a_retryable_failure(serve: "Serve") -> None:
    app, gate = FastAPI(), asyncio.Event()

    @app.post("/v1/responses")
    async def respond() -> None:
        await gate.wait()

    async with serve(app) as url:
        error = await failure(f"{url}/v1", timeout_seconds=0.2)
        gate.set()
    assert (error.slug, is_retryable(error)) == ("upstream-timeout", True)


async def test_an_answer_beyond_the_limit_is_a_failure(serve: "Serve") -> None:
    async with serve(answering((200, dumps({"output": [], "x": "y" * 5000}), {}))) as url:
        error = await failure(f"{url}/v1", max_answer_bytes=2000)
    assert "larger than 2000 bytes" in error.detail


async def test_a_key_that_the_agent_repeats_is_not_told(serve: "Serve") -> None:
    async with serve(answering((401, f"bad key {KEY}".encode(), {}))) as url:
        error = await failure(f"{url}/v1", api_key=KEY)
    assert "bad key [api key]" in error.detail
    assert KEY not in str(error.extensions)


@pytest.mark.parametrize(
    ("wrong", "pointer"),
    [
        ({"base_url": "ftp://x"}, "base_url"),
        ({"base_url": "http://user:secret@host/v1"}, "base_url"),
        ({"api_key": "two\nsecret lines"}, "api_key"),
    ],
)
async def test_wrong_settings_are_refused_without_showing_them(wrong: JsonObject, pointer: str) -> None:
    values = {"resources": "exact", "base_url": "http://127.0.0.1:9/v1", **wrong}
    with pytest.raises(ConfigError, match=pointer) as caught:
        RemoteSettings.parse(values, where="settings")
    assert "secret" not in str(caught.value)
