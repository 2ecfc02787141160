"""Clients of the collector and the profiler, for people and scripts: httpx, synchronous and not."""

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from rollmill.client.service_client import auth_headers
from rollmill.client.tls import client_tls
from rollmill.client.transport import reply_error
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import RunRequest, RunStatus
from rollmill.errors import ConnectError, RollmillError, UpstreamError, from_problem

EVENT = "_rollmill_event"
TIMEOUT_SECONDS = 30.0


class _Client:
    """What the synchronous clients share.

    Args:
        url: base URL of the service.
        token: bearer token.
        timeout_seconds: for each answer to begin; streams may then go on for any time.
        ca_file: authorities (PEM) that its certificate is checked against, instead of the system's.
    """

    def __init__(
        self, url: str, *, token: str = "", timeout_seconds: float = TIMEOUT_SECONDS, ca_file: Path | None = None
    ) -> None:
        headers = auth_headers(token)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds, verify=_verify(ca_file))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _call(self, method: str, path: str, body: JsonValue = None, **params: str | int | bool) -> JsonValue:
        try:
            reply = self._http.request(method, path, content=_content(body), headers=_JSON, params=params)
        except httpx.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        return _value(reply)


class _AsyncClient:
    """What the asynchronous clients share; arguments as in the synchronous ones."""

    def __init__(
        self, url: str, *, token: str = "", timeout_seconds: float = TIMEOUT_SECONDS, ca_file: Path | None = None
    ) -> None:
        headers = auth_headers(token)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_seconds, verify=_verify(ca_file))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _call(self, method: str, path: str, body: JsonValue = None, **params: str | int | bool) -> JsonValue:
        try:
            reply = await self._http.request(method, path, content=_content(body), headers=_JSON, params=params)
        except httpx.TransportError as error:
            raise _unreachable(self._http.base_url, error) from error
        return _value(reply)


class CollectorClient(_Client):
    """Talks to a collector service. Every method raises the `RollmillError` that the service reports."""

    def start(self, request: RunRequest) -> RunStatus:
        """Start a run, or find the same one again."""
        return RunStatus.model_validate(self._call("POST", "/v1/runs", _body(request)))

    def runs(self) -> list[RunStatus]:
        """List the runs, newest first."""
        return [RunStatus.model_validate(run) for run in self._call("GET", "/v1/runs")["runs"]]

    def status(self, run_id: str) -> RunStatus:
        """Return a run's numbers."""
        return RunStatus.model_validate(self._call("GET", f"/v1/runs/{run_id}"))

    def cancel(self, run_id: str) -> RunStatus:
        """Stop a run; `resume` goes on from there."""
        return RunStatus.model_validate(self._call("POST", f"/v1/runs/{run_id}/cancel"))

    def pause(self, run_id: str) -> RunStatus:
        """Start no further rollouts for now."""
        return RunStatus.model_validate(self._call("POST", f"/v1/runs/{run_id}/pause"))

    def resume(self, run_id: str) -> RunStatus:
        """Go on with a paused, interrupted, cancelled or failed run."""
        return RunStatus.model_validate(self._call("POST", f"/v1/runs/{run_id}/resume"))

    def set_concurrency(self, run_id: str, concurrency: int) -> RunStatus:
        """Change the number of rollouts in flight."""
        return RunStatus.model_validate(self._call("PATCH", f"/v1/runs/{run_id}", {"concurrency": concurrency}))

    def rollouts(self, run_id: str, *, follow: bool = True, from_line: int = 0) -> Iterator[Row]:
        """Yield a run's rollouts from a line on, and with `follow` until the run ends.

        Raises:
            UpstreamError: the stream broke off; the rollouts so far are complete, go on from their number.
        """
        params = {"follow": follow, "from_line": from_line}
        path = f"/v1/runs/{run_id}/rollouts"
        try:
            with self._http.stream("GET", path, params=params, timeout=_STREAM_TIMEOUT) as reply:
                if not reply.is_success:
                    raise reply_error(reply.status_code, reply.headers, reply.read())
                for line in _lines(reply.iter_bytes()):
                    row = loads(line)
                    if EVENT in row:
                        return _end(row)
                    yield row
        except httpx.TransportError as error:
            raise UpstreamError(f"the stream of {run_id} broke off: {error}", retryable=True) from error
        raise UpstreamError(f"the stream of {run_id} ended without its last line", retryable=True)


class AsyncCollectorClient(_AsyncClient):
    """Talks to a collector service; see `CollectorClient`."""

    async def start(self, request: RunRequest) -> RunStatus:
        """Start a run, or find the same one again."""
        return RunStatus.model_validate(await self._call("POST", "/v1/runs", _body(request)))

    async def runs(self) -> list[RunStatus]:
        """List the runs, newest first."""
        return [RunStatus.model_validate(run) for run in (await self._call("GET", "/v1/runs"))["runs"]]

    async def status(self, run_id: str) -> RunStatus:
        """Return a run's numbers."""
        return RunStatus.model_validate(await self._call("GET", f"/v1/runs/{run_id}"))

    async def cancel(self, run_id: str) -> RunStatus:
        """Stop a run; `resume` goes on from there."""
        return RunStatus.model_validate(await self._call("POST", f"/v1/runs/{run_id}/cancel"))

    async def pause(self, run_id: str) -> RunStatus:
        """Start no further rollouts for now."""
        return RunStatus.model_validate(await self._call("POST", f"/v1/runs/{run_id}/pause"))

    async def resume(self, run_id: str) -> RunStatus:
        """Go on with a paused, interrupted, cancelled or failed run."""
        return RunStatus.model_validate(await self._call("POST", f"/v1/runs/{run_id}/resume"))

    async def set_concurrency(self, run_id: str, concurrency: int) -> RunStatus:
        """Change the number of rollouts in flight."""
        return RunStatus.model_validate(await self._call("PATCH", f"/v1/runs/{run_id}", {"concurrency": concurrency}))

    async def rollouts(self, run_id: str, *, follow: bool = True, from_line: int = 0) -> AsyncIterator[Row]:
        """Yield a run's rollouts; see `CollectorClient.rollouts`."""
        params = {"follow": follow, "from_line": from_line}
        path = f"/v1/runs/{run_id}/rollouts"
        try:
            async with self._http.stream("GET", path, params=params, timeout=_STREAM_TIMEOUT) as reply:
                if not reply.is_success:
                    raise reply_error(reply.status_code, reply.headers, await reply.aread())
                async for line in _async_lines(reply.aiter_bytes()):
                    row = loads(line)
                    if EVENT in row:
                        _end(row)
                        return
                    yield row
        except httpx.TransportError as error:
            raise UpstreamError(f"the stream of {run_id} broke off: {error}", retryable=True) from error
        raise UpstreamError(f"the stream of {run_id} ended without its last line", retryable=True)


class ProfilerClient(_Client):
    """Talks to a profiler service."""

    def run_profile(self, run_id: str, **params: str | int | bool) -> JsonObject:
        """Return the profile of a run, finished or not; parameters as in `GET /v1/runs/{id}/profile`."""
        profile: JsonObject = self._call("GET", f"/v1/runs/{run_id}/profile", **params)
        return profile

    def profile(self, request: JsonObject) -> JsonObject:
        """Return the profile of posted rows; body as in `POST /v1/profile`."""
        profile: JsonObject = self._call("POST", "/v1/profile", request)
        return profile

    def compare(self, a: str, b: str, *, force: bool = False) -> JsonObject:
        """Set run `b` beside run `a`, agent by agent; see `rollmill.comparison.compare_files`."""
        comparison: JsonObject = self._call("GET", "/v1/compare", a=a, b=b, force=force)
        return comparison


class AsyncProfilerClient(_AsyncClient):
    """Talks to a profiler service; see `ProfilerClient`."""

    async def run_profile(self, run_id: str, **params: str | int | bool) -> JsonObject:
        """Return the profile of a run, finished or not."""
        profile: JsonObject = await self._call("GET", f"/v1/runs/{run_id}/profile", **params)
        return profile

    async def profile(self, request: JsonObject) -> JsonObject:
        """Return the profile of posted rows."""
        profile: JsonObject = await self._call("POST", "/v1/profile", request)
        return profile

    async def compare(self, a: str, b: str, *, force: bool = False) -> JsonObject:
        """Set run `b` beside run `a`."""
        comparison: JsonObject = await self._call("GET", "/v1/compare", a=a, b=b, force=force)
        return comparison


_JSON: Mapping[str, str] = {"content-type": "application/json"}
_STREAM_TIMEOUT = httpx.Timeout(TIMEOUT_SECONDS, read=None)


class _Lines:
    """Cuts bytes into lines at newlines only: httpx's own also cuts at characters that JSON text may hold."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that the chunk completes."""
        *ended, rest = chunk.split(b"\n")
        if ended:
            ended[0] = b"".join([*self._parts, ended[0]])
            self._parts = []
        self._parts.append(rest)
        return ended


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    lines = _Lines()
    for chunk in chunks:
        yield from lines.feed(chunk)


async def _async_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    lines = _Lines()
    async for chunk in chunks:
        for line in lines.feed(chunk):
            yield line


def _verify(ca_file: Path | None) -> ssl.SSLContext | bool:
    return client_tls(ca_file) if ca_file else True


def _body(request: RunRequest) -> JsonObject:
    return request.model_dump(mode="json", exclude_defaults=True)


def _content(body: JsonValue) -> bytes | None:
    return None if body is None else dumps(body)


def _value(reply: httpx.Response) -> JsonValue:
    if not reply.is_success:
        raise reply_error(reply.status_code, reply.headers, reply.content)
    return loads(reply.content)


def _unreachable(url: httpx.URL, error: httpx.TransportError) -> RollmillError:
    if isinstance(error, httpx.ConnectError):
        return ConnectError(f"{url}: {error}")
    return UpstreamError(f"{url}: {type(error).__name__} {error}".rstrip(), retryable=True)


def _end(event: JsonObject) -> None:
    if event[EVENT] == "error":
        raise from_problem(event, int(event.get("status", 500)))
