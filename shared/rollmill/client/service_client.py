import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from rollmill.client.directory import Directory, Replica
from rollmill.client.retry import RetryPolicy, retry_delay
from rollmill.client.transport import Reply, Transport
from rollmill.context import (
    DEADLINE_HEADER,
    IDEMPOTENCY_HEADER,
    REQUEST_ID_HEADER,
    TRACE_HEADER,
    CallContext,
    get_context,
    to_unix,
)
from rollmill.errors import (
    ConnectError,
    ConnectionLostError,
    DeadlineError,
    OverloadedError,
    RollmillError,
    ToolFailedError,
)

PATIENCE_SECONDS = 5.0
"""Longest time that a call waits, in all, for a service none of whose replicas can be reached: one that is started
again, in most cases. After that it is sent nevertheless."""
LOOK_AGAIN_SECONDS = 0.25
"""How often it looks meanwhile: the directory may know another replica by then."""


class ServiceClient:
    """Calls services by name: chooses a replica, carries the context on, retries what may be retried.

    Args:
        transport: carries the calls.
        directory: finds replicas.
        token: bearer token shown to every service.
        policy: bounds of the retries.
        sleep: waits between retries (replaced in tests).
        uniform: jitter.
    """

    def __init__(
        self,
        transport: Transport,
        directory: Directory,
        *,
        token: str = "",
        policy: RetryPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.transport = transport
        self.directory = directory
        self._policy = policy or RetryPolicy()
        self._sleep = sleep
        self._uniform = uniform
        self._base_headers = auth_headers(token) | {"content-type": "application/json"}

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
        return (
            await self.place(
                name, path, body, method=method, replica=replica, key=key, headers=headers, timeout=timeout
            )
        )[1]

    async def place(
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
    ) -> tuple[Replica, Reply]:
        """Call a service as `call` does, and return also the replica that answered."""
        context = get_context().sooner(timeout)
        pinned = replica
        failed: set[str] = set()
        patience = _Patience(self._sleep)
        attempt = 0
        while True:
            attempt += 1
            chosen: Replica | None = None
            try:
                chosen = pinned or await patience.pick(self.directory, name, failed, context)
                sent = self._headers(context, key, headers)  # anew: the wall clock may have been set since
                return chosen, await self._send(chosen, method, path, sent, body, context.remaining())
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
        headers = dict(self._base_headers)
        if context.request_id:
            headers[REQUEST_ID_HEADER] = context.request_id
        if context.deadline is not None:
            headers[DEADLINE_HEADER] = f"{to_unix(context.deadline):.3f}"
        if context.traceparent:
            headers[TRACE_HEADER] = context.traceparent
        if key:
            headers[IDEMPOTENCY_HEADER] = key
        if extra:
            headers.update(extra)
        return headers

    def _delay(self, error: RollmillError, attempt: int, key: str, deadline: float | None) -> float | None:
        delay = retry_delay(error, attempt=attempt, has_key=bool(key), policy=self._policy, uniform=self._uniform)
        if delay is None or (deadline is not None and time.monotonic() + delay >= deadline):
            return None
        return delay

    async def _send(
        self, replica: Replica, method: str, path: str, headers: dict[str, str], body: bytes, timeout: float | None
    ) -> Reply:
        """Send the call once and return its 2xx answer; tell the replica's breaker how it ended."""
        breaker = replica.breaker
        probe = breaker.begin()
        replica.in_flight += 1
        try:
            reply = await self.transport.send(method, replica.url + path, headers=headers, body=body, timeout=timeout)
            error = None if reply.ok else reply.error()
            if error is not None and _own_failure(error):
                breaker.failed(probe=probe, unreachable=False)
            elif not isinstance(error, DeadlineError):
                breaker.succeeded()
        except (ConnectError, ConnectionLostError):
            breaker.failed(probe=probe, unreachable=True)
            self.directory.suspect(replica)
            raise
        finally:
            replica.in_flight -= 1
            breaker.ended(probe=probe)
        if error is not None:
            raise error
        return reply


class _Patience:
    """Waits, within bounds, while no replica of a service can be reached."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._sleep = sleep
        self._left = PATIENCE_SECONDS

    async def pick(self, directory: Directory, name: str, avoid: Collection[str], context: CallContext) -> Replica:
        """Return the replica to send a call to; one that cannot be reached when the waiting was in vain."""
        while True:
            chosen = await directory.pick(name, avoid=avoid)
            breaker = chosen.breaker
            if breaker.admits or not breaker.unreachable or self._left <= 0:
                return chosen
            wait = min(breaker.wait_seconds, self._left, LOOK_AGAIN_SECONDS)
            remaining = context.remaining()
            if remaining is not None and remaining <= wait:
                return chosen
            self._left -= wait
            await self._sleep(wait)


def _own_failure(error: RollmillError) -> bool:
    """Say whether an error answer tells of the instance itself: not of its load, a tool, or a service behind it."""
    told = isinstance(error, OverloadedError | DeadlineError | ToolFailedError) or "boundary" in error.extensions
    return error.status >= 500 and not told


def auth_headers(token: str) -> dict[str, str]:
    """Return the headers that show the token, none when it is empty."""
    return {"authorization": f"Bearer {token}"} if token else {}


def _same_again(error: RollmillError, chosen: Replica | None) -> Replica | None:
    """A call that may have arrived is repeated where it arrived: there it joins its first copy."""
    return chosen if isinstance(error, ConnectionLostError) else None
