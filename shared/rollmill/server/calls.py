"""Calls and answers of the hot routes: raw bytes in, raw bytes out, with no framework between.

`docs/decisions/0002-hot-routes.md` has the measurement behind this.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import structlog

from rollmill.config.secret_values import without_secrets
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.errors import InputError, RollmillError, to_problem

log = structlog.get_logger(__name__)

RawHeaders: TypeAlias = Sequence[tuple[bytes, bytes]]

_JSON: RawHeaders = ((b"content-type", b"application/json"),)
_PROBLEM: RawHeaders = ((b"content-type", b"application/problem+json"),)
_EVENTS: RawHeaders = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"))
NDJSON: RawHeaders = ((b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store"))


class Call(NamedTuple):
    """One request to a hot route, its body read."""

    path: str
    headers: dict[bytes, bytes]
    """Lower-case names."""
    body: bytes

    def json_object(self) -> JsonObject:
        """Parse the body.

        Raises:
            InputError: the body is not a JSON object.
        """
        try:
            value = loads(self.body) if self.body else {}
        except ValueError as error:
            raise InputError(f"the body is not valid JSON: {error}", errors=[_fault(str(error))]) from None
        if not isinstance(value, dict):
            raise InputError("the body must be a JSON object", errors=[_fault("must be an object")])
        return value


def _fault(detail: str) -> JsonObject:
    return {"pointer": "", "detail": detail}


class Answer(NamedTuple):
    """What a hot route answers: a body, or a stream of chunks."""

    body: bytes = b""
    status: int = 200
    headers: RawHeaders = _JSON
    stream: AsyncGenerator[bytes, None] | None = None
    keep: bool = True
    """Whether a repeat under the same idempotency key may be given this answer again."""


def json_answer(value: JsonValue, *, headers: RawHeaders = (), keep: bool = True) -> Answer:
    """Answer 200 with JSON."""
    return Answer(dumps(value), headers=(*_JSON, *headers) if headers else _JSON, keep=keep)


def problem_answer(error: RollmillError, *, instance: str = "", hidden: Iterable[str] = ()) -> Answer:
    """Answer with the problem document of an error, and `Retry-After` when it says how long to wait.

    Args:
        error: what went wrong.
        instance: path of the call.
        hidden: the service's secrets, which are masked wherever they stand.
    """
    headers = list(_PROBLEM)
    if error.retry_after is not None:
        headers.append((b"retry-after", f"{error.retry_after:g}".encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="rollmill"'))
    body = without_secrets(dumps(to_problem(error, instance=instance)).decode(), hidden)
    return Answer(body.encode(), error.status, headers)


def event_stream(events: AsyncGenerator[JsonObject, None], *, named: bool) -> Answer:
    """Answer with server-sent events; `named` ones carry their `type` as event name (Responses API style).

    Any error after the first byte becomes a last event of type `error`; Chat Completions streams, which are not
    named, end with `[DONE]`.
    """
    return Answer(headers=_EVENTS, stream=_sse(events, named))


async def _sse(events: AsyncGenerator[JsonObject, None], named: bool) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(events):
            async for event in events:
                prefix = b"event: " + str(event.get("type", "message")).encode() + b"\n" if named else b""
                yield prefix + b"data: " + dumps(event) + b"\n\n"
    except RollmillError as error:
        yield _error_event(error, named)
        return
    except Exception:
        log.exception("stream_failed")
        yield _error_event(RollmillError("the service failed; its log has the request id"), named)
        return
    if not named:
        yield b"data: [DONE]\n\n"


def _error_event(error: RollmillError, named: bool) -> bytes:
    prefix = b"event: error\n" if named else b""
    body = {"type": "error", "code": error.slug, "message": error.detail, "error": to_problem(error)}
    return prefix + b"data: " + dumps(body) + b"\n\n"


Handler: TypeAlias = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class HotRoute:
    """A route that bypasses the framework; its OpenAPI entry is still declared."""

    method: str
    path: str
    handler: Handler
    summary: str
    keyed: bool = False
    """Honour `Idempotency-Key`: join the call in flight, or repeat its recent answer."""
    watched: bool = False
    """Stop the handler when the client goes away."""
    own_check: bool = False
    """The handler itself checks who calls; the service's token is not asked for."""
    request_schema: JsonObject | None = None
    response_schema: JsonObject | None = None
