from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rollmill.contracts.json import JsonValue, loads
from rollmill.errors import RollmillError, UpstreamError, from_problem


class Reply(NamedTuple):
    """A whole HTTP answer."""

    status: int
    headers: Mapping[str, str]
    """Lower-case names, or a case-insensitive mapping."""
    body: bytes

    @property
    def ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def json(self) -> JsonValue:
        """Parse the body.

        Raises:
            UpstreamError: the body is not JSON; not retryable, since the call was processed.
        """
        try:
            return loads(self.body)
        except ValueError:
            raise UpstreamError(f"the answer is not JSON: {excerpt(self.body)}", retryable=False) from None

    def error(self) -> RollmillError:
        """Rebuild the error that this answer reports."""
        return reply_error(self.status, self.headers, self.body)


@dataclass(frozen=True, slots=True)
class StreamReply:
    """An HTTP answer whose body arrives in chunks."""

    status: int
    headers: Mapping[str, str]
    chunks: AsyncIterator[bytes]


class Transport(Protocol):
    """Carries one call. Implementations: `HttpTransport` over the network, `AsgiTransport` within the process."""

    async def send(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", timeout: float | None = None
    ) -> Reply:
        """Send a request and return the whole answer, whatever its status.

        Raises:
            ConnectError: no connection; certainly not processed.
            ConnectionLostError: broke after the request may have been sent.
            UpstreamTimeoutError: no answer within `timeout` seconds.
        """

    def stream(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamReply]:
        """Send a request and hand out the answer's chunks as they come; errors as in `send`."""

    async def aclose(self) -> None:
        """Close every connection."""


def reply_error(status: int, headers: Mapping[str, str], body: bytes) -> RollmillError:
    """Turn an error answer into the class that the server raised; foreign answers become `UpstreamError`."""
    problem = None
    if "json" in headers.get("content-type", ""):
        try:
            problem = loads(body)
        except ValueError:
            problem = None
    if not isinstance(problem, dict):
        problem = {"detail": f"HTTP {status}: {_redirect(headers) or excerpt(body)}"}
    error = from_problem(problem, status)
    if type(error) is UpstreamError:
        error.extensions.setdefault("upstream_status", status)
    wait = headers.get("retry-after")
    if wait and wait.replace(".", "", 1).isdigit():
        error.extensions.setdefault("retry_after", float(wait))
    return error


def _redirect(headers: Mapping[str, str]) -> str:
    place = headers.get("location")
    if not place:
        return ""
    return (
        f"a redirect to {excerpt(place.encode())}, which is not followed; services must register the URL that answers"
    )


def excerpt(body: bytes, limit: int = 200) -> str:
    """Return the start of a body as printable text on one line, for an error message."""
    text = body[: limit * 4].decode("utf-8", "replace")
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return (line[:limit] + "…" if len(line) > limit else line) or "empty body"
