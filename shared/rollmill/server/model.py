from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.observability.meters import Meter
from rollmill.openai import (
    chat_chunks,
    chat_request_to_responses,
    response_events,
    response_to_chat_completion,
)


class Model(ABC):
    """Answers requests. Subclass it and write `respond`; everything else has a default made from it.

    It knows nothing of HTTP: a test builds it and awaits `respond`.
    """

    Settings: ClassVar[type[ServiceSettings]] = ServiceSettings

    def __init__(self, settings: ServiceSettings | None = None) -> None:
        self.settings = settings or self.Settings()

    @property
    def meters(self) -> Sequence[Meter]:
        """What the model tells at `/metrics` besides what every service tells."""
        return ()

    async def startup(self) -> None:
        """Open what the model needs; the service is not ready before this returns."""

    async def shutdown(self) -> None:
        """Release what `startup` opened."""

    @abstractmethod
    async def respond(self, request: JsonObject) -> JsonObject:
        """Answer a Responses request with a Responses object."""

    async def complete(self, request: JsonObject) -> JsonObject:
        """Answer a Chat Completions request with a chat completion."""
        return response_to_chat_completion(await self.respond(chat_request_to_responses(request)))

    async def stream_response(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """Answer a Responses request as its stream of events, from `response.created` to `response.completed`."""
        for event in response_events(await self.respond(request)):
            yield event

    async def stream_completion(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """Answer a Chat Completions request as its stream of chunks."""
        for chunk in chat_chunks(await self.complete(request), include_usage=_wants_usage(request)):
            yield chunk


def _wants_usage(request: JsonObject) -> bool:
    options = request.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))
