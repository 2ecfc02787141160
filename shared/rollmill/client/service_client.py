import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from rollmill.client.directory import Directory, Replica
from rollmill.client.retry import RetryPolicy, retry_delay
from rollmill.client.transport import Reply, Transport
from rollmill.config.tokens import Tokens
from rollmill.context import (
    DEADLINE_HEADER,
    IDEMPOTENCY_HEADER,
    REQUEST_ID_HEADER,
    TRACE_HEADER,
    CallContext,
    get_context,
)
from rollmill.errors import ConnectError, ConnectionLostError, RollmillError


class ServiceClient:
    """Calls services by name: chooses a replica, carries the context on, retries what may be retried.

    Args:
        transport: carries the calls.
        directory: finds replicas.
        token: bearer token shown to every service, or where it is to be had.
        policy: bounds of the retries.
        sleep: waits between retries (replaced in tests).
        uniform: jitter.
    """

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        *,
        token: str | Tokens = "",
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.transport = transport
        self.directory = directory
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._uniform = uniform
        self._tokens = token if isinstance(token, Tokens) else Tokens(token)

    async def call(
        self,
        name: str,
        path: str,
        body: bytes = b"",
        *,
        method: str = "POST",
        replica: Replica | None = None,
        key: str = "",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Reply:
        """Call a service and return its 2xx answer.

        Args:
            name: service name; also names it in errors.
            path: path on the service.
            body: JSON bytes.
            replica: pins the call; otherwise each attempt picks a replica, avoiding those that failed.
            key: idempotency key, which allows retries of calls that may have been processed.
            headers: further headers, lower-case names.
            timeout: seconds for all attempts together; the context's deadline also holds.

        Raises:
            RollmillError: the error that the service reported, or the transport's, `service` among its extensions.
        """
        context = get_context().sooner(timeout)
        sent = self._headers(context, key, headers)
        pinned = replica
        failed: set[str] = set()
        attempt = 0
        while True:
            attempt += 1
            chosen: Replica | None = None
            try:
                chosen = pinned or await self.directory.pick(name, avoid=failed)
                reply = await self._send(chosen, method, path, sent, body, context.remaining())
                if reply.ok:
                    return reply
                raise reply.error()
            except RollmillError as error:
                error.extensions.setdefault("service", name)
                delay = self._delay(error, attempt, key, context.deadline)
                if delay is None:
                    raise
                pinned = replica or _same_again(error, chosen)
                if pinned is None and chosen is not None:
                    failed.add(chosen.info.instance)
                await self._sleep(delay)

    def _headers(self, context: CallContext, key: str, extra: Mapping[str, str] | None) -> dict[str, str]:
        headers = auth_headers(self._tokens.shown)
        headers["content-type"] = "application/json"
        if context.request_id:
            headers[REQUEST_ID_HEADER] = context.request_id
        if context.deadline is not None:
            headers[DEADLINE_HEADER] = f"{context.deadline:.3f}"
        if context.traceparent:
            headers[TRACE_HEADER] = context.traceparent
        if key:
            headers[IDEMPOTENCY_HEADER] = key
        if extra:
            headers.update(extra)
        return headers

    def _delay(self, error: RollmillError, attempt: int, key: str, deadline: float | None) -> float | None:
        delay = retry_delay(error, attempt=attempt, has_key=bool(key), policy=self._policy, uniform=self._uniform)
        if delay is None or (deadline is not None and time.time() + delay >= deadline):
            return None
        return delay

    async def _send(
        self, replica: Replica, method: str, path: str, headers: dict[str, str], body: bytes, timeout: float | None
    ) -> Reply:
        replica.in_flight += 1
        try:
            return await self.transport.send(method, replica.url + path, headers=headers, body=body, timeout=timeout)
        except (ConnectError, ConnectionLostError):
            self.directory.suspect(replica)
            raise
        finally:
            replica.in_flight -= 1


def auth_headers(token: str) -> dict[str, str]:
    """Return the headers that show the token, none when it is empty."""
    return {"authorization": f"Bearer {token}"} if token else {}


def _same_again(error: RollmillError, chosen: Replica | None) -> Replica | None:
    """A call that may have arrived is repeated where it arrived: there it joins its first copy."""
    return chosen if isinstance(error, ConnectionLostError) else None
