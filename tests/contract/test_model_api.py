import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import ClassVar

import httpx
import pytest
from openai import AsyncOpenAI

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.errors import InputError, OverloadedError
from rollmill.openai import new_response, text_message
from rollmill.server import Model, model_app
from rollmill.testing import FakeModel, asgi_client, service_client


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(model_app(FakeModel(["hello"]))) as client:
        yield client


def sdk(client: httpx.AsyncClient) -> AsyncOpenAI:
    http: JsonValue = client  # its own httpx is another distribution of the same library
    return AsyncOpenAI(api_key="x", base_url="http://service/v1", http_client=http, max_retries=0)


async def test_both_dialects_work_with_the_public_client(client: httpx.AsyncClient) -> None:
    openai = sdk(client)
    response = await openai.responses.create(model="m", input="hi")
    assert response.output_text == "hello"
    completion = await openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert completion.choices[0].message.content == "hello"
    assert completion.usage is not None
    assert completion.usage.total_tokens == 15


async def test_both_dialects_stream_with_the_public_client(client: httpx.AsyncClient) -> None:
    openai = sdk(client)
    types = [event.type async for event in await openai.responses.create(model="m", input="hi", stream=True)]
    assert (types[0], types[-1]) == ("response.created", "response.completed")
    text = ""
    stream = await openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
    assert text == "hello"


async def test_chat_streams_end_with_done_and_responses_streams_do_not(client: httpx.AsyncClient) -> None:
    chat = await client.post("/v1/chat/completions", json={"messages": [], "stream": True})
    assert chat.text.endswith("data: [DONE]\n\n")
    assert not chat.text.startswith("event:")
    responses = await client.post("/v1/responses", json={"input": "x", "stream": True})
    assert responses.text.startswith("event: response.created\ndata: ")
    assert "[DONE]" not in responses.text


@pytest.mark.parametrize("flag", [False, None])
async def test_a_stream_flag_that_is_not_set_is_no_stream(client: httpx.AsyncClient, flag: bool | None) -> None:
    response = await client.post("/v1/responses", json={"input": "x", "stream": flag})
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_an_early_failure_is_an_http_error_streamed_or_not(path: str, stream: bool) -> None:
    model = FakeModel([InputError("no such model"), OverloadedError("busy", retry_after=3)])
    async with asgi_client(model_app(model)) as client:
        body = {"input": "x", "messages": [], "stream": stream}
        assert (await client.post(path, json=body)).status_code == 422
        overloaded = await client.post(path, json=body)
        assert (overloaded.status_code, overloaded.headers["retry-after"]) == (503, "3")


class Late(Model):
    """Fails after its first event, and records its life."""

    log: ClassVar[list[str]] = []

    async def startup(self) -> None:
        self.log.append("startup")

    async def shutdown(self) -> None:
        self.log.append("shutdown")

    async def respond(self, request: JsonObject) -> JsonObject:
        return new_response([text_message("x")], request=request, model="late", usage=None)

    async def stream_response(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        yield {"type": "response.created"}
        raise OverloadedError("gone")


async def test_a_late_failure_is_the_last_event_and_the_model_is_started_and_stopped() -> None:
    Late.log.clear()
    async with asgi_client(model_app(Late(ServiceSettings()))) as client:
        assert Late.log == ["startup"]
        response = await client.post("/v1/responses", json={"input": "x", "stream": True})
    assert Late.log == ["startup", "shutdown"]
    assert response.status_code == 200
    assert response.text.split("\n\n")[-2].startswith("event: error\n")


class Silent(Late):
    async def stream_response(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        for event in list[JsonObject]():
            yield event


async def test_a_stream_without_events_is_empty() -> None:
    async with asgi_client(model_app(Silent(ServiceSettings()))) as client:
        response = await client.post("/v1/responses", json={"stream": True})
    assert (response.status_code, response.content) == (200, b"")


async def test_the_openapi_document_lists_both_dialects(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path in ("/v1/responses", "/v1/chat/completions"):
        assert "application/json" in paths[path]["post"]["requestBody"]["content"]
    assert (await client.get("/version")).json()["kind"] == "model"


class Watched(Late):
    closed: ClassVar[list[str]] = []

    async def stream_response(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        try:
            for number in range(1_000_000):
                yield {"type": "response.output_text.delta", "delta": str(number)}
                await asyncio.sleep(0)
        finally:
            self.closed.append("closed")


async def test_a_stream_is_closed_when_its_reader_leaves() -> None:
    Watched.closed.clear()
    async with service_client({"watched": model_app(Watched(ServiceSettings()))}) as client:
        replica = await client.directory.pick("watched")
        body = dumps({"input": "x", "stream": True})
        async with client.transport.stream("POST", f"{replica.url}/v1/responses", headers={}, body=body) as reply:
            async for _ in reply.chunks:
                break
    assert Watched.closed == ["closed"]
