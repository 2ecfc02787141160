from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import ClassVar

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.errors import UpstreamError
from rollmill.observability.meters import Meter
from rollmill.openai import (
    chat_completion_to_response,
    chat_request_to_responses,
    chunks_from_events,
    events_from_chat_chunks,
    response_to_chat_completion,
    responses_request_to_chat,
)
from rollmill.openai.items import as_object
from rollmill.openai.requests import merge_extra_body
from rollmill.openai.results import check_error, check_failed
from rollmill.server import Model
from rollmill_services.models.openai_compatible.client import EngineClient
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings

_CHAT = "/chat/completions"
_RESPONSES = "/responses"
_FINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class OpenAICompatible(Model):
    """Answers through an engine that speaks Chat Completions or Responses, whichever of the two callers use."""

    Settings: ClassVar[type[ServiceSettings]] = OpenAICompatibleSettings

    def __init__(self, settings: OpenAICompatibleSettings) -> None:
        super().__init__(settings)
        self._options = settings
        self._speaks_chat = settings.upstream == "chat"
        self._service = settings.name or "openai_compatible"
        self._client = EngineClient(settings, service=self._service)

    @property
    def meters(self) -> Sequence[Meter]:
        """See `Model.meters`."""
        return [self._client.retries]

    async def startup(self) -> None:
        """Open the connections; whether the engine is up shows with the first request."""
        await self._client.open()

    async def shutdown(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def respond(self, request: JsonObject) -> JsonObject:
        """Answer a Responses request."""
        with self._named():
            if self._speaks_chat:
                completion = await self._post_chat(responses_request_to_chat(request))
                return chat_completion_to_response(completion, request)
            return await self._post_responses(merge_extra_body(request))

    async def complete(self, request: JsonObject) -> JsonObject:
        """Answer a Chat Completions request."""
        with self._named():
            if self._speaks_chat:
                return await self._post_chat(merge_extra_body(request))
            converted = merge_extra_body(chat_request_to_responses(request))
            return response_to_chat_completion(await self._post_responses(converted))

    async def stream_response(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """Answer a Responses request with its events, each as soon as the engine sends its part."""
        with self._named():
            if self._speaks_chat:
                body = responses_request_to_chat(request) | {"stream_options": {"include_usage": True}}
                async with aclosing(self._stream(_CHAT, body)) as chunks:
                    async for event in events_from_chat_chunks(chunks, request):
                        yield event
            else:
                async with aclosing(self._stream(_RESPONSES, merge_extra_body(request))) as events:
                    async for event in _whole_events(events):
                        yield event

    async def stream_completion(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """Answer a Chat Completions request with its chunks, each as soon as the engine sends its part."""
        with self._named():
            if self._speaks_chat:
                async with aclosing(self._stream(_CHAT, merge_extra_body(request))) as chunks:
                    async for chunk in _whole_chunks(chunks):
                        yield chunk
            else:
                wants_usage = bool(as_object(request.get("stream_options")).get("include_usage"))
                body = merge_extra_body(chat_request_to_responses(request))
                async with aclosing(self._stream(_RESPONSES, body)) as events:
                    async for chunk in chunks_from_events(events, include_usage=wants_usage):
                        yield chunk

    async def _post_chat(self, body: JsonObject) -> JsonObject:
        return await self._client.post(_CHAT, self._whole_body(body), expect="choices")

    async def _post_responses(self, body: JsonObject) -> JsonObject:
        response = await self._client.post(_RESPONSES, self._whole_body(body), expect="output")
        check_failed(response)
        return response

    def _stream(self, path: str, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
        return self._client.stream(path, {**self._with_settings(body), "stream": True})

    def _whole_body(self, body: JsonObject) -> JsonObject:
        whole = self._with_settings(body)
        return {key: value for key, value in whole.items() if key not in ("stream", "stream_options")}

    def _with_settings(self, body: JsonObject) -> JsonObject:
        """Return the body with the fields that the settings fill in, and with their model."""
        filled = {**self._options.extra_body, **body}
        return filled | {"model": self._options.model} if self._options.model else filled

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Complete the errors that conversions raise: name this service, and cut out the api key."""
        try:
            yield
        except UpstreamError as error:
            error.extensions.setdefault("service", self._service)
            error.detail = self._client.clean(error.detail)
            error.args = (error.detail,)
            raise


async def _whole_chunks(chunks: AsyncIterator[JsonObject]) -> AsyncIterator[JsonObject]:
    """Pass chunks on and notice when they stop before the answer is whole."""
    is_whole = False
    async for chunk in chunks:
        check_error(chunk)
        is_whole = is_whole or any(choice.get("finish_reason") for choice in chunk.get("choices") or [])
        yield chunk
    if not is_whole:
        raise UpstreamError("the stream of chunks stopped before its end", retryable=True)


async def _whole_events(events: AsyncIterator[JsonObject]) -> AsyncIterator[JsonObject]:
    """Pass events on and notice when they stop before the response is whole."""
    is_whole = False
    async for event in events:
        check_error(event)
        is_whole = is_whole or event.get("type") in _FINAL_EVENTS
        yield event
    if not is_whole:
        raise UpstreamError("the stream of events stopped before its end", retryable=True)
