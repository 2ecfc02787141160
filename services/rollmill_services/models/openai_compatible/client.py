import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp

from rollmill.context import TRACE_HEADER, get_context
from rollmill.contracts.json import JsonObject, dumps
from rollmill.errors import ConnectError, NotReadyError, RollmillError, UpstreamTimeoutError, is_retryable
from rollmill.observability.meters import Counter
from rollmill_services.models.openai_compatible.balance import Balance, Engine
from rollmill_services.models.openai_compatible.faults import Faults, without
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings
from rollmill_services.models.openai_compatible.sse import sse_data

T = TypeVar("T")

_BROKEN = (aiohttp.ClientError, OSError, TimeoutError)
_MAX_REFUSAL_BYTES = 1024 * 1024
_KEEPALIVE_SECONDS = 4.0
"""Below the 5 s after which the common engines drop an idle connection."""


class EngineClient:
    """Posts requests to an engine's replicas and keeps trying within bounds.

    A model call changes nothing on the engine, so unlike other calls it may be sent again even when it is not
    known whether it was processed.

    Args:
        settings: of the model service.
        service: its name, for errors.
    """

    def __init__(self, settings: OpenAICompatibleSettings, *, service: str) -> None:
        self._settings = settings
        self._session: aiohttp.ClientSession | None = None
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._secret = key
        self.retries = Counter("rollmill_engine_retries_total", "Requests that were sent to an engine again.", "reason")
        self._balance = Balance(
            [Engine(url, Faults(service=service, host=urlsplit(url).netloc, secret=key)) for url in settings.base_urls]
        )

    async def open(self) -> None:
        """Open the connection pool."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, limit_per_host=0, keepalive_timeout=_KEEPALIVE_SECONDS, happy_eyeballs_delay=None
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._settings.connect_timeout_seconds,
                sock_read=self._settings.timeout_seconds,
            ),
            headers=self._headers,
        )

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def clean(self, text: str) -> str:
        """Return the text without the api key."""
        return without(self._secret, text)

    async def post(self, path: str, body: JsonObject, *, expect: str) -> JsonObject:
        """Post a request and return the JSON object of the answer.

        Args:
            path: below the base URL.
            body: request body.
            expect: name of a list that every true answer has.

        Raises:
            OverloadedError: the engine asked for less load, and still did after the retries.
            UpstreamError: it failed; `retryable` says whether the same request may succeed later.
            UpstreamTimeoutError: it took too long.
        """
        payload = dumps(body)

        async def send(engine: Engine, seconds: float) -> JsonObject:
            with engine.busy():
                response = await self._request(engine, path, payload, seconds)
                return engine.faults.parse(await self._read(engine, response, seconds), expect=expect)

        return await self._retried(send)

    async def stream(self, path: str, body: JsonObject) -> AsyncGenerator[JsonObject, None]:
        """Post a request and yield the JSON objects of the answer's server-sent events, up to `[DONE]`.

        Raises:
            RollmillError: as `post`; once the stream has begun nothing is tried again.
        """
        payload = dumps(body)

        async def send(engine: Engine, seconds: float) -> tuple[Engine, aiohttp.ClientResponse]:
            response = await self._request(engine, path, payload, seconds)
            if response.content_type != "text/event-stream":
                raw = await self._read(engine, response, seconds)
                raise engine.faults.unusable("did not answer with a stream of events", raw)
            return engine, response

        engine, response = await self._retried(send)
        with engine.busy():
            try:
                chunks, limit = response.content.iter_any(), self._settings.max_answer_bytes
                async with aclosing(sse_data(chunks, limit=limit)) as events:
                    async for data in events:
                        if data == b"[DONE]":
                            response.release()
                            return
                        yield engine.faults.parse(data)
            except _BROKEN as error:
                fault = engine.faults.of_exception(error, timeout_seconds=self._settings.timeout_seconds)
            else:
                return
            finally:
                response.close()
        raise fault

    async def _request(self, engine: Engine, path: str, payload: bytes, seconds: float) -> aiohttp.ClientResponse:
        """Send one request and return the answer once its status is known to be 200."""
        try:
            response = await self._opened().post(
                engine.base_url + path, data=payload, headers=_trace_headers(), allow_redirects=False
            )
        except _BROKEN as error:
            fault = engine.faults.of_exception(error, timeout_seconds=seconds)
        else:
            if response.status == 200:
                return response
            fault = await self._refusal(engine, response)
        raise fault

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise NotReadyError("the model service is not started")
        return self._session

    async def _refusal(self, engine: Engine, response: aiohttp.ClientResponse) -> RollmillError:
        try:
            raw = await _start(response.content.iter_any(), _MAX_REFUSAL_BYTES)
        except _BROKEN:
            raw = b""  # the status says enough
        finally:
            response.release()
        return engine.faults.of_status(response.status, response.headers, raw, now=time.time())

    async def _retried(self, send: Callable[[Engine, float], Awaitable[T]]) -> T:
        """Attempt until it works, cannot work, or the bounds of attempts or time are reached."""
        self._opened()
        seconds = get_context().sooner(self._settings.timeout_seconds).remaining() or 0.0
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        attempt = 0
        while True:
            attempt += 1
            engine = self._balance.choose()
            try:
                async with asyncio.timeout_at(deadline):
                    return await send(engine, seconds)
            except TimeoutError as error:
                fault = engine.faults.of_exception(error, timeout_seconds=seconds)
            except RollmillError as error:
                fault = error
            wait = self._wait(fault, engine, attempt)
            if wait is None or clock() + wait >= deadline:
                raise fault
            self.retries.add(fault.slug)
            await asyncio.sleep(wait)

    async def _read(self, engine: Engine, response: aiohttp.ClientResponse, seconds: float) -> bytes:
        """Read an answer, but no more of it than the settings allow: an engine is not trusted with our memory."""
        limit = self._settings.max_answer_bytes
        chunks: list[bytes] = []
        try:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                limit -= len(chunk)
                if limit < 0:
                    raise engine.faults.too_large(self._settings.max_answer_bytes)
            response.release()
            return b"".join(chunks)
        except _BROKEN as error:
            fault = engine.faults.of_exception(error, timeout_seconds=seconds)
        finally:
            response.close()
        raise fault  # outside the handler: what aiohttp raises holds the request's headers

    def _wait(self, fault: RollmillError, engine: Engine, attempt: int) -> float | None:
        """Return the seconds to wait before the next attempt, or None when there should be none."""
        settings = self._settings
        other_awake = isinstance(fault, ConnectError) and self._balance.rest(engine)
        if attempt > settings.max_retries or isinstance(fault, UpstreamTimeoutError) or not is_retryable(fault):
            return None
        if other_awake:
            return 0.0
        ceiling = min(settings.retry_cap_seconds, settings.retry_base_seconds * 2 ** (attempt - 1))
        return random.uniform(0.0, ceiling) + (fault.retry_after or 0.0)


def _trace_headers() -> dict[str, str]:
    """Engines trace as well."""
    trace = get_context().traceparent
    return {TRACE_HEADER: trace} if trace else {}


async def _start(chunks: AsyncIterator[bytes], size: int) -> bytes:
    """Read a body to its end, or until it has at least that many bytes."""
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) >= size:
            break
    return body
