"""Serves a `Model` object over HTTP, in the two dialects of the OpenAI API."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from rollmill.contracts.json import JsonObject
from rollmill.server.app import ServiceApp, build_app
from rollmill.server.calls import Answer, Call, Handler, HotRoute, event_stream, json_answer
from rollmill.server.model import Model
from rollmill.server.runtime import Runtime


def model_app(model: Model) -> ServiceApp:
    """Build the application of a model service."""

    @asynccontextmanager
    async def lifespan(_: Runtime) -> AsyncIterator[None]:
        await model.startup()
        try:
            yield
        finally:
            await model.shutdown()

    respond = _handler(model.respond, model.stream_response, named=True)
    complete = _handler(model.complete, model.stream_completion, named=False)
    routes = [
        HotRoute("POST", "/v1/responses", respond, "Answer a Responses request", watched=True),
        HotRoute("POST", "/v1/chat/completions", complete, "Answer a Chat Completions request", watched=True),
    ]
    runtime = Runtime(model.settings, "model", meters=list(model.meters))
    title = type(model).__name__
    return build_app(model.settings, kind="model", title=title, hot=routes, lifespan=lifespan, runtime=runtime)


def _handler(
    whole: Callable[[JsonObject], Awaitable[JsonObject]],
    streamed: Callable[[JsonObject], AsyncGenerator[JsonObject, None]],
    *,
    named: bool,
) -> Handler:
    async def answer(call: Call) -> Answer:
        request = call.json_object()
        if request.get("stream"):
            return event_stream(await begun(streamed(request)), named=named)
        return json_answer(await whole(request))

    return answer


async def begun(events: AsyncGenerator[JsonObject, None]) -> AsyncGenerator[JsonObject, None]:
    """Fetch the first event before answering, so that an early failure is an HTTP error and not a broken stream."""
    first = await anext(events, None)

    async def rest() -> AsyncGenerator[JsonObject, None]:
        async with aclosing(events):
            if first is not None:
                yield first
            async for event in events:
                yield event

    return rest()
