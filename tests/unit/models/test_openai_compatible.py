"""The model service against a real HTTP server on a free port that misbehaves in every known way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import cast

import pytest
from aiohttp import web
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import SecretStr

from rollmill.context import CallContext, reset_context, set_context
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import answer_text
from rollmill.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    InputError,
    NotReadyError,
    OverloadedError,
    UpstreamError,
    UpstreamTimeoutError,
    is_retryable,
)
from rollmill.observability.meters import exposition
from rollmill.openai import (
    chat_chunks,
    chat_completion_to_response,
    new_response,
    response_events,
    text_message,
)
from rollmill_services.models.openai_compatible.app import create_app
from rollmill_services.models.openai_compatible.model import OpenAICompatible
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings

KEY = "sk-very-secret-0123456789"
COMPLETION: JsonObject = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "engine-model",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "logprobs": None,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeEngine:
    """Answers each request with the next of its answers, and the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[JsonObject] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.asked = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(loads(await request.read()))
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        self.asked.set()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        try:
            return await answer(request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.cancelled.set()
            raise


@asynccontextmanager
async def serving(*engines: FakeEngine) -> AsyncIterator[None]:
    runners = []
    for engine in engines:
        app = web.Application()
        app.router.add_post("/v1/{path:.*}", engine.handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = cast("tuple[str, int]", runner.addresses[0])[1]
        engine.url = f"http://127.0.0.1:{port}/v1"
        runners.append(runner)
    try:
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


@asynccontextmanager
async def model_on(*engines: FakeEngine, **options: object) -> AsyncIterator[OpenAICompatible]:
    defaults: JsonObject = {"model": "m", "api_key": SecretStr(KEY), "retry_base_seconds": 0.0, "name": "policy"}
    async with serving(*engines):
        urls = [engine.url for engine in engines]
        settings = OpenAICompatibleSettings.model_validate({"base_url": urls} | defaults | options)
        model = OpenAICompatible(settings)
        await model.startup()
        try:
            yield model
        finally:
            await model.shutdown()


def plain(body: object = COMPLETION, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    raw = body if isinstance(body, bytes) else dumps(body)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=raw, status=status, headers=headers, content_type="application/json")

    return answer


def streamed(*parts: JsonObject, done: bool = True, hang: bool = False) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(b"data: " + dumps(part) + b"\n\n")
        if hang:
            await asyncio.sleep(30)
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return answer


async def slow(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    raise AssertionError("nobody waits this long")


async def half(request: web.Request, status: int = 200) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


CHUNKS = list(chat_chunks(COMPLETION, include_usage=True))
RESPONSE = new_response([text_message("hello")], request={}, model="engine-model", usage={})
EVENTS = list(response_events(RESPONSE))


# the four ways to ask, over both kinds of engine


async def test_a_responses_request_is_answered_through_a_chat_engine() -> None:
    engine = FakeEngine(plain())
    async with model_on(engine) as model:
        request = {"input": "hi", "model": "other", "metadata": {"extra_body": '{"seed": 1}'}, "stream": False}
        response = await model.respond(request)

    assert Response.model_validate(response).output_text == "hello"
    assert engine.paths == ["/v1/chat/completions"]
    assert engine.bodies == [{"messages": [{"role": "user", "content": "hi"}], "model": "m", "seed": 1}]
    assert engine.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_a_chat_request_goes_straight_through_a_chat_engine() -> None:
    engine = FakeEngine(plain(COMPLETION | {"vendor": "kept"}))
    async with model_on(engine) as model:
        request = {"messages": [{"role": "user", "content": "hi", "name": "ada"}], "n": 1, "stop": None}
        completion = await model.complete(request)

    assert completion == COMPLETION | {"vendor": "kept"}
    assert engine.bodies == [{"messages": request["messages"], "n": 1, "model": "m"}]


async def test_a_responses_request_goes_straight_through_a_responses_engine() -> None:
    engine = FakeEngine(plain(RESPONSE))
    async with model_on(engine, upstream="responses") as model:
        response = await model.respond({"input": "hi", "truncation": "auto"})

    assert response == RESPONSE
    assert engine.paths == ["/v1/responses"]
    assert engine.bodies == [{"input": "hi", "truncation": "auto", "model": "m"}]


async def test_a_chat_request_is_answered_through_a_responses_engine() -> None:
    engine = FakeEngine(plain(RESPONSE))
    async with model_on(engine, upstream="responses") as model:
        completion = await model.complete({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})

    assert ChatCompletion.model_validate(completion).choices[0].message.content == "hello"
    assert engine.bodies[0]["max_output_tokens"] == 4


async def test_without_a_model_of_its_own_the_service_keeps_that_of_the_request() -> None:
    engine = FakeEngine(plain())
    async with model_on(engine, model="", api_key=None, extra_body={"temperature": 0.5, "top_k": 3}) as model:
        await model.complete({"messages": [], "model": "theirs", "temperature": 1.0})

    assert engine.bodies == [{"messages": [], "model": "theirs", "temperature": 1.0, "top_k": 3}]
    assert "Authorization" not in engine.headers[0]


async def test_a_failed_response_is_an_error_that_names_the_service() -> None:
    failed = RESPONSE | {"status": "failed", "error": {"code": "server_error", "message": f"boom {KEY}"}}
    async with model_on(FakeEngine(plain(failed)), upstream="responses") as model:
        with pytest.raises(UpstreamError, match="boom") as raised:
            await model.respond({"input": "hi"})

    assert raised.value.extensions["service"] == "policy"
    assert KEY not in f"{raised.value} {raised.value!r}"


async def test_a_request_that_chat_cannot_express_never_leaves() -> None:
    engine = FakeEngine(plain())
    async with model_on(engine) as model:
        with pytest.raises(InputError):
            await model.respond({"input": "hi", "previous_response_id": "resp_1"})

    assert engine.paths == []


# failures and retries


async def test_a_refused_key_is_not_retried_and_not_shown() -> None:
    engine = FakeEngine(plain({"error": {"message": f"bad key {KEY}"}}, status=401))
    async with model_on(engine) as model:
        with pytest.raises(UpstreamError, match="check api_key") as raised:
            await model.respond({"input": "hi"})

    assert "127.0.0.1" in raised.value.detail
    assert raised.value.extensions["upstream_status"] == 401
    assert not is_retryable(raised.value)
    assert len(engine.bodies) == 1
    assert KEY not in f"{raised.value!r} {raised.value.__cause__!r} {raised.value.__context__!r}"


async def test_an_overload_is_waited_out() -> None:
    engine = FakeEngine(plain({}, status=429, headers={"Retry-After": "0.01"}), plain())
    async with model_on(engine) as model:
        assert answer_text(await model.respond({"input": "hi"})) == "hello"

    assert len(engine.bodies) == 2
    assert 'rollmill_engine_retries_total{reason="overloaded"} 1\n' in exposition(model.meters)


async def test_the_engine_is_told_the_trace_of_the_call_and_none_without_one() -> None:
    engine = FakeEngine(plain())
    async with model_on(engine) as model:
        token = set_context(CallContext(traceparent="00-trace"))
        try:
            await model.respond({"input": "hi"})
        finally:
            reset_context(token)
        await model.respond({"input": "hi"})

    assert [headers.get("traceparent") for headers in engine.headers] == ["00-trace", None]


async def test_an_overload_that_lasts_is_passed_on_with_the_wait() -> None:
    engine = FakeEngine(plain({}, status=429, headers={"Retry-After": "0.01"}))
    async with model_on(engine, max_retries=2) as model:
        with pytest.raises(OverloadedError) as raised:
            await model.respond({"input": "hi"})

    assert raised.value.retry_after == 0.01
    assert len(engine.bodies) == 3


async def test_a_wait_beyond_the_time_limit_is_not_begun() -> None:
    engine = FakeEngine(plain({}, status=429, headers={"Retry-After": "3600"}))
    async with model_on(engine) as model:
        with pytest.raises(OverloadedError):
            await model.respond({"input": "hi"})

    assert len(engine.bodies) == 1


@pytest.mark.parametrize(
    "broken",
    [
        plain({}, status=500),
        plain(b"<html>Bad Gateway</html>", status=502),
        plain({}, status=503),
        plain(b"<html>hello</html>"),
        plain(b""),
        plain({"choices": []} | {"error": "x", "choices": None}),
        half,
    ],
    ids=["500", "502", "503", "html", "empty", "error", "half"],
)
async def test_a_passing_failure_is_tried_again(broken: Answer) -> None:
    engine = FakeEngine(broken, plain())
    async with model_on(engine) as model:
        assert answer_text(await model.respond({"input": "hi"})) == "hello"

    assert len(engine.bodies) == 2


async def test_a_lasting_failure_is_retryable_and_says_what_came() -> None:
    async with model_on(FakeEngine(plain(b"<html>Bad Gateway</html>")), max_retries=1) as model:
        with pytest.raises(UpstreamError, match="Bad Gateway") as raised:
            await model.respond({"input": "hi"})

    assert is_retryable(raised.value)
    assert raised.value.extensions["service"] == "policy"


async def test_half_a_body_is_a_lost_connection() -> None:
    async with model_on(FakeEngine(half), max_retries=0) as model:
        with pytest.raises(ConnectionLostError) as raised:
            await model.complete({"messages": []})

    assert is_retryable(raised.value)


async def test_half_a_refusal_is_judged_by_its_status() -> None:
    async with model_on(FakeEngine(partial(half, status=400)), max_retries=0) as model:
        with pytest.raises(UpstreamError, match="answered 400") as raised:
            await model.complete({"messages": []})

    assert not is_retryable(raised.value)


async def test_half_an_answer_that_should_be_a_stream_is_a_lost_connection() -> None:
    async with model_on(FakeEngine(half), max_retries=0) as model:
        with pytest.raises(ConnectionLostError):
            await gathered(model.stream_completion({"messages": []}))


async def test_an_answer_that_is_too_long_is_refused_for_good() -> None:
    long = {**COMPLETION, "padding": "x" * 5000}
    engine = FakeEngine(plain(long))
    async with model_on(engine, max_answer_bytes=2000) as model:
        with pytest.raises(UpstreamError, match="more than 2000 bytes") as caught:
            await model.complete({"messages": []})
    assert not is_retryable(caught.value)
    assert len(engine.bodies) == 1


async def test_a_bad_request_is_not_retried() -> None:
    engine = FakeEngine(plain({"error": {"message": "too long", "code": "context_length_exceeded"}}, status=400))
    async with model_on(engine) as model:
        with pytest.raises(UpstreamError, match="too long") as raised:
            await model.complete({"messages": []})

    assert not is_retryable(raised.value)
    assert len(engine.bodies) == 1


async def test_a_slow_engine_is_a_timeout_that_is_not_retried() -> None:
    engine = FakeEngine(slow)
    async with model_on(engine, timeout_seconds=0.1) as model:
        with pytest.raises(UpstreamTimeoutError, match=r"no answer within 0\.1 s"):
            await model.respond({"input": "hi"})

    assert len(engine.bodies) == 1


async def test_the_deadline_of_the_call_holds_too() -> None:
    async with model_on(FakeEngine(slow)) as model:
        token = set_context(CallContext().sooner(0.1))
        try:
            with pytest.raises(DeadlineError):
                await model.respond({"input": "hi"})
        finally:
            reset_context(token)


async def test_a_cancelled_call_lets_go_of_the_engine() -> None:
    engine = FakeEngine(slow)
    async with model_on(engine) as model:
        call = asyncio.create_task(model.respond({"input": "hi"}))
        await asyncio.wait_for(engine.asked.wait(), 10)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(engine.cancelled.wait(), 10)


async def test_an_engine_that_is_not_there_is_a_connect_error() -> None:
    engine = FakeEngine(plain())
    async with serving(engine):
        pass
    settings = OpenAICompatibleSettings(base_url=engine.url, max_retries=1, retry_base_seconds=0)
    model = OpenAICompatible(settings)
    await model.startup()
    with pytest.raises(ConnectError) as raised:
        await model.respond({"input": "hi"})
    await model.shutdown()

    assert is_retryable(raised.value)
    assert raised.value.extensions["service"] == "openai_compatible"


async def test_an_engine_that_is_gone_is_passed_over() -> None:
    gone, alive = FakeEngine(plain()), FakeEngine(plain())
    async with serving(gone):
        pass
    async with serving(alive):
        model = OpenAICompatible(OpenAICompatibleSettings(base_url=[gone.url, alive.url], max_retries=1))
        await model.startup()
        for _ in range(6):
            assert answer_text(await model.respond({"input": "hi"})) == "hello"
        await model.shutdown()

    assert len(alive.bodies) == 6


async def test_requests_are_spread_over_engines_by_what_is_in_flight() -> None:
    both = asyncio.Event()

    async def together(_: web.Request) -> web.StreamResponse:
        if first.bodies and second.bodies:
            both.set()
        await both.wait()
        return web.json_response(COMPLETION)

    first, second = FakeEngine(together), FakeEngine(together)
    async with model_on(first, second) as model, asyncio.TaskGroup() as calls:
        for _ in range(2):
            calls.create_task(model.respond({"input": "hi"}))

    assert len(first.bodies) == len(second.bodies) == 1


async def test_a_model_that_is_not_started_says_so() -> None:
    with pytest.raises(NotReadyError):
        await OpenAICompatible(OpenAICompatibleSettings(base_url="http://engine")).respond({"input": "hi"})


# streams


async def gathered(parts: AsyncIterator[JsonObject]) -> list[JsonObject]:
    return [part async for part in parts]


async def test_chunks_go_straight_through() -> None:
    engine = FakeEngine(streamed(*CHUNKS))
    async with model_on(engine) as model:
        request = {"messages": [], "stream": True, "stream_options": {"include_usage": True}}
        assert await gathered(model.stream_completion(request)) == CHUNKS

    assert engine.bodies == [request | {"model": "m"}]


async def test_chunks_become_events_with_usage() -> None:
    engine = FakeEngine(streamed(*CHUNKS))
    async with model_on(engine) as model:
        events = await gathered(model.stream_response({"input": "hi", "stream": True}))
    final, whole = events[-1]["response"], chat_completion_to_response(COMPLETION, {})

    assert answer_text(final) == "hello"
    assert final["usage"] == whole["usage"]
    assert engine.bodies[0]["stream_options"] == {"include_usage": True}


async def test_events_go_straight_through_and_become_chunks() -> None:
    async with model_on(FakeEngine(streamed(*EVENTS, done=False)), upstream="responses") as model:
        assert await gathered(model.stream_response({"input": "hi"})) == EVENTS
        chunks = await gathered(model.stream_completion({"messages": []}))

    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hello"


async def test_the_first_part_of_a_stream_is_there_before_the_last_is_sent() -> None:
    engine = FakeEngine(streamed(*CHUNKS[:2], hang=True))
    async with model_on(engine) as model:
        async with aclosing(model.stream_response({"input": "hi"})) as events:
            async for event in events:
                if event["type"] == "response.output_text.delta":
                    break
        await asyncio.wait_for(engine.cancelled.wait(), 10)  # leaving the stream lets go of the engine


@pytest.mark.parametrize("upstream", ["chat", "responses"])
async def test_a_stream_that_stops_early_is_an_error_in_both_dialects(upstream: str) -> None:
    parts = CHUNKS[:2] if upstream == "chat" else EVENTS[:-1]
    async with model_on(FakeEngine(streamed(*parts, done=False)), upstream=upstream) as model:
        with pytest.raises(UpstreamError, match="stopped"):
            await gathered(model.stream_response({"input": "hi"}))
        with pytest.raises(UpstreamError, match="stopped"):
            await gathered(model.stream_completion({"messages": []}))


async def test_a_stream_that_hangs_is_a_timeout() -> None:
    engine = FakeEngine(streamed(*CHUNKS[:2], hang=True))
    async with model_on(engine, timeout_seconds=0.2) as model:
        with pytest.raises(UpstreamTimeoutError):
            await gathered(model.stream_completion({"messages": []}))


async def test_an_error_within_a_stream_is_raised_without_the_key() -> None:
    broken = streamed(*CHUNKS[:2], {"error": {"message": f"boom {KEY}", "code": 500}})
    async with model_on(FakeEngine(broken)) as model:
        with pytest.raises(UpstreamError, match=r"boom \*\*\*") as raised:
            await gathered(model.stream_completion({"messages": []}))

    assert KEY not in repr(raised.value)


async def test_a_stream_is_tried_again_before_it_begins_and_not_after() -> None:
    begun = streamed(*CHUNKS[:2], done=False)
    engine = FakeEngine(plain({}, status=503), begun)
    async with model_on(engine) as model:
        with pytest.raises(UpstreamError, match="stopped"):
            await gathered(model.stream_completion({"messages": []}))

    assert len(engine.bodies) == 2


async def test_an_engine_that_does_not_stream_is_an_error() -> None:
    async with model_on(FakeEngine(plain()), max_retries=0) as model:
        with pytest.raises(UpstreamError, match="did not answer with a stream"):
            await gathered(model.stream_completion({"messages": []}))


async def test_the_app_is_built_from_settings_without_touching_the_network() -> None:
    assert create_app(OpenAICompatibleSettings(base_url="http://127.0.0.1:9/v1")) is not None
