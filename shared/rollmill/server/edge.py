"""The outermost layer of every service, in pure ASGI: who may call, for how long, how much, and how errors look.

Hot routes are answered right here from a table; everything else goes on to FastAPI.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollmill.client.asgi import IN_PROCESS, Direct
from rollmill.context import (
    ATTEMPT_HEADER,
    DEADLINE_HEADER,
    IDEMPOTENCY_HEADER,
    REQUEST_ID_HEADER,
    TRACE_HEADER,
    CallContext,
    from_unix,
    get_context,
    reset_context,
    set_context,
)
from rollmill.contracts.json import NestingError
from rollmill.errors import (
    REFUSED,
    DeadlineError,
    InputError,
    OverloadedError,
    PayloadTooLargeError,
    RollmillError,
    UnauthorizedError,
)
from rollmill.ids import new_id
from rollmill.observability.tracing import NO_TRACER, Attribute
from rollmill.server.call_meters import CallMeters, routed
from rollmill.server.calls import Answer, Call, HotRoute, problem_answer
from rollmill.server.idempotency import KeptAnswers
from rollmill.server.runtime import Runtime
from rollmill.time_limit import time_limit

log = structlog.get_logger(__name__)

OPEN_PATHS = frozenset({"/livez", "/readyz"})
"""Answered without a token, so that an orchestrator can probe; they reveal nothing."""
DISCONNECT_GRACE_SECONDS = 0.25
"""A keyed call goes on this long without its client, for a retry over a new connection to join it. Two such hops, agent
and tool, stop within a second of the collector's cancellation."""

_NO_EXTENSIONS: Final[Mapping[str, Direct]] = {}
_REQUEST_ID = REQUEST_ID_HEADER.encode()
_DEADLINE = DEADLINE_HEADER.encode()
_TRACE = TRACE_HEADER.encode()
_ATTEMPT = ATTEMPT_HEADER.encode()
_KEY = IDEMPOTENCY_HEADER.encode()


class Edge:
    """Wraps an application; counts the calls in flight.

    Args:
        app: where calls go that are not hot.
        runtime: has the limits of size, time and number, and what callers must show one of; without, all are let in.
        routes: the hot routes.
        meters: count the calls.
    """

    def __init__(self, app: ASGIApp, runtime: Runtime, routes: Iterable[HotRoute], meters: CallMeters) -> None:
        self._app = app
        self._settings = runtime.settings
        self._routes = {(route.method, route.path): route for route in routes}
        self._tokens = runtime.tokens
        self._tracer = runtime.tracer
        self._meters = meters
        self._hidden = runtime.hidden
        self._about: Mapping[str, Attribute] = {"rollmill.service": runtime.settings.name}
        self._kept = KeptAnswers()
        self.in_flight = 0
        self._own_check = frozenset(route.path for route in self._routes.values() if route.own_check)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(_REQUEST_ID, b"").decode("latin-1")[:128] or new_id()
        sending = _Sending(send, request_id, self._hidden, _direct(scope))
        token = None
        began = time.perf_counter()
        route = self._routes.get((scope["method"], scope["path"]))
        self.in_flight += 1
        try:
            token = set_context(self._admit(scope, headers, request_id))
            if route is None:
                await self._pass_on(scope, receive, sending)
            else:
                serve = self._serve if self._tracer is NO_TRACER else self._spanned
                await serve(route, headers, scope, receive, sending)
        except RollmillError as error:
            await sending.problem(error, instance=scope["path"])
        except NestingError as error:  # nothing of ours is: it was sent
            await sending.problem(InputError(str(error)), instance=scope["path"])
        except Exception as error:
            await self._failed(error, sending, scope["path"])
        finally:
            self.in_flight -= 1
            if token is not None:
                reset_context(token)
            method, path = (route.method, route.path) if route else routed(scope)
            self._meters.answered(method, path, sending.status, time.perf_counter() - began)

    @staticmethod
    async def _failed(error: Exception, sending: "_Sending", path: str) -> None:
        if sending.complete:
            return  # Starlette raises again what it has answered and logged
        log.error("request_failed", path=path, request_id=sending.request_id, exc_info=error)
        if sending.started:
            raise error  # the server breaks the connection, so that the client sees a torn answer
        await sending.problem(RollmillError("the service failed; its log has the request id"))

    def _admit(self, scope: Scope, headers: dict[bytes, bytes], request_id: str) -> CallContext:
        if scope["path"] in OPEN_PATHS:
            return CallContext(request_id)
        trusted = not self._tokens or _in_process(scope) or scope["path"] in self._own_check
        if not trusted and not self._tokens.accepts(headers.get(b"authorization", b"")):
            raise UnauthorizedError("this service needs a bearer token: send 'Authorization: Bearer $(rollmill token)'")
        if self.in_flight > self._settings.max_in_flight:
            raise OverloadedError(f"{self._settings.max_in_flight} calls are in flight", retry_after=1.0)
        context = CallContext(
            request_id,
            _deadline(headers),
            headers.get(_TRACE, b"").decode("latin-1")[:128],
            headers.get(_ATTEMPT, b"").decode("latin-1")[:256],
            self._tracer,
        )
        try:
            context.remaining()
        except DeadlineError as error:
            error.extensions[REFUSED] = True
            raise
        return context

    async def _spanned(
        self, route: HotRoute, headers: dict[bytes, bytes], scope: Scope, receive: Receive, sending: "_Sending"
    ) -> None:
        with self._tracer.span(f"{route.method} {route.path}", "server", self._about):
            await self._serve(route, headers, scope, receive, sending)

    async def _serve(
        self, route: HotRoute, headers: dict[bytes, bytes], scope: Scope, receive: Receive, sending: "_Sending"
    ) -> None:
        direct = sending.direct
        body = await self._read(headers, receive) if direct is None else self._within(direct.body)
        call = Call(scope["path"], headers, body)
        if _in_process(scope):
            # The caller is this very process: it bounds the time, cancels the handler itself and never loses a call.
            await sending.answer(await route.handler(call))
            return
        key = headers.get(_KEY, b"").decode("latin-1") if route.keyed else ""
        key = key and f"{route.path} {key}"
        if not route.watched:
            await sending.answer(await self._bounded(route, call, key))
            return
        async with self._watched(key, receive, sending):
            await sending.answer(await self._bounded(route, call, key))

    async def _bounded(self, route: HotRoute, call: Call, key: str) -> Answer:
        left = get_context().remaining()
        seconds = self._settings.request_timeout_seconds if left is None else left
        limit = time_limit(seconds)
        try:
            with limit:
                if key:
                    return await self._kept.once(key, lambda: route.handler(call))
                return await route.handler(call)
        except TimeoutError:
            if not limit.expired:
                raise  # the handler's own
            raise DeadlineError(f"{route.path} did not finish within {seconds:.1f} s") from None

    @asynccontextmanager
    async def _watched(self, key: str, receive: Receive, sending: "_Sending") -> AsyncIterator[None]:
        """Cancel the block when the client leaves, also amid a stream, and no retry joined meanwhile."""
        worker = asyncio.current_task()
        left = False

        async def watch() -> None:
            nonlocal left
            while (await receive())["type"] != "http.disconnect":
                pass
            if key:
                await self._kept.until_alone(key, worker, DISCONNECT_GRACE_SECONDS)
            if worker is not None and not sending.complete:
                left = True
                worker.cancel()

        watcher = asyncio.create_task(watch())
        try:
            yield
        except asyncio.CancelledError:
            if not left or worker is None or worker.uncancel() > 0:
                raise
            log.info("client_left", request_id=sending.request_id)
        finally:
            watcher.cancel()

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        limit = self._settings.max_body_bytes
        _check_length(headers, limit)
        message = await receive()
        _check_present(message)
        body: bytes = message.get("body", b"")
        if not message.get("more_body"):
            return self._within(body)
        chunks = [body]
        size = len(body)
        while message.get("more_body"):
            message = await receive()
            _check_present(message)
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > limit:
                raise _too_large(limit)
        return b"".join(chunks)

    def _within(self, body: bytes) -> bytes:
        if len(body) > self._settings.max_body_bytes:
            raise _too_large(self._settings.max_body_bytes)
        return body

    async def _pass_on(self, scope: Scope, receive: Receive, sending: "_Sending") -> None:
        limit = self._settings.max_body_bytes
        _check_length(dict(scope["headers"]), limit)
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > limit:
                raise _too_large(limit)
            return message

        await self._app(scope, limited, sending)


class _Sending:
    """Sends one answer: adds the request id, and knows how far it got."""

    __slots__ = ("_hidden", "_send", "complete", "direct", "request_id", "started", "status")

    def __init__(self, send: Send, request_id: str, hidden: Callable[[], Iterable[str]], direct: Direct | None) -> None:
        self._send = send
        self._hidden = hidden
        self.direct = direct
        self.request_id = request_id
        self.status = 0
        self.started = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), _id_header(self.request_id)]
        await self._send(message)
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")

    async def answer(self, answer: Answer) -> None:
        """Send a whole answer."""
        headers = list(answer.headers)
        if self.direct is not None and answer.stream is None:
            self.started = self.complete = True
            self.status = answer.status
            headers.append(_id_header(self.request_id))
            self.direct.whole(answer.status, headers, answer.body)
            return
        if answer.stream is None:
            headers.append((b"content-length", str(len(answer.body)).encode()))
            await self({"type": "http.response.start", "status": answer.status, "headers": headers})
            await self({"type": "http.response.body", "body": answer.body})
            return
        await self({"type": "http.response.start", "status": answer.status, "headers": headers})
        async with aclosing(answer.stream) as chunks:
            async for chunk in chunks:
                await self({"type": "http.response.body", "body": chunk, "more_body": True})
        await self({"type": "http.response.body", "body": b""})

    async def problem(self, error: RollmillError, *, instance: str = "") -> None:
        """Send the problem document of an error, or raise it when part of an answer is out already."""
        if self.started:
            raise error
        await self.answer(problem_answer(error, instance=instance, hidden=self._hidden()))


def _in_process(scope: Scope) -> bool:
    return IN_PROCESS in scope.get("extensions", ())


def _direct(scope: Scope) -> Direct | None:
    found: Direct | None = scope.get("extensions", _NO_EXTENSIONS).get(IN_PROCESS)
    return found


def _check_present(message: Message) -> None:
    if message["type"] == "http.disconnect":
        raise InputError("the client left before its request was complete")


def _deadline(headers: dict[bytes, bytes]) -> float | None:
    raw = headers.get(_DEADLINE)
    if raw is None:
        return None
    try:
        deadline = float(raw)
    except ValueError:
        deadline = math.nan
    if not math.isfinite(deadline):
        raise InputError(f"{DEADLINE_HEADER} must be a Unix time in seconds")
    return from_unix(deadline)


def _check_length(headers: dict[bytes, bytes], limit: int) -> None:
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


def _too_large(limit: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"the body is larger than {limit} bytes (setting max_body_bytes)")


def _id_header(request_id: str) -> tuple[bytes, bytes]:
    return _REQUEST_ID, request_id.encode("latin-1", "replace")
