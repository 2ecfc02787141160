"""One HTTP/1.1 connection to a service (RFC 9112): one call after the other, never two at once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import httptools

from rollmill.errors import ConnectionLostError, RollmillError, UpstreamError, UpstreamTimeoutError

MAX_HEAD_BYTES: Final = 64 * 1024
"""Most that may arrive without being a part of a body: the head, a chunk's extensions, the trailers."""
HIGH_WATER_BYTES: Final = 256 * 1024
"""A stream whose reader is this far behind is not read on."""


class Answer:
    """What is answered to one request, as it arrives.

    Args:
        limit: most bytes of the body; a larger one is an error. None hands the body out as it comes, in any size.
    """

    __slots__ = (
        *("_waiter", "complete", "error", "headers", "held", "keep_alive", "limit", "parts", "status", "to_the_end"),
    )

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.status = 0
        """0 until the head has been read."""
        self.headers: dict[str, str] = {}
        """By lower-case name; the first of those that come twice."""
        self.parts: list[bytes] = []
        self.held = 0
        """Bytes in `parts`."""
        self.keep_alive = False
        """Whether the connection may carry another call after this answer."""
        self.to_the_end = False
        """Whether the end of the connection is that of the body."""
        self.complete = False
        self.error: RollmillError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def head(self) -> None:
        """Wait until status and headers are there; raise what happened instead."""
        while not self.status:
            await self._change()

    async def whole(self) -> bytes:
        """Wait for all of the body; raise what happened instead."""
        while not self.complete:
            await self._change()
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    async def part(self) -> bytes:
        """Wait for more of the body, and take it; empty at its end. Raise what happened instead."""
        while not self.parts and not self.complete:
            await self._change()
        found = b"".join(self.parts)
        self.parts.clear()
        self.held = 0
        return found

    def wake(self) -> None:
        """Have who waits look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _change(self) -> None:
        if self.error is not None:
            raise self.error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
        self._waiter = None


class Connection(asyncio.Protocol):
    """Sends a request and fills its answer.

    Args:
        peer: origin that it leads to, for messages.
        on_lost: told when it is closed, whoever closed it.
    """

    def __init__(self, peer: str, on_lost: Callable[["Connection"], None]) -> None:
        self._peer = peer
        self._on_lost = on_lost
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answer: Answer | None = None
        """The one that is being read: none before a request, after the answer's end, and after a failure."""
        self._beside = 0
        """Bytes that have arrived since there was any of a body."""
        self._paused = False

    @property
    def closed(self) -> bool:
        """Whether it carries nothing any more."""
        return self._transport is None or self._transport.is_closing()

    def begin(self, answer: Answer, request: Sequence[bytes]) -> None:
        """Send a request. Everything that happens from now on is told to the answer."""
        self._answer = answer
        self._beside = 0
        if self._transport is None or self._transport.is_closing():
            self._fail(ConnectionLostError(f"{self._peer}: the connection is closed"))
        else:
            self._transport.writelines(request)

    def can_go_on(self, answer: Answer) -> bool:
        """Say whether another call may follow the one that was answered."""
        return answer.complete and answer.keep_alive and not self.closed and not self._unsent()

    async def parts(self, answer: Answer) -> AsyncIterator[bytes]:
        """Hand out the answer's body as it arrives; a slow reader slows the sender."""
        while part := await answer.part():
            if self._paused and self._transport is not None:
                self._paused = False
                self._transport.resume_reading()
            yield part

    def expire(self, seconds: float) -> None:
        """End a call whose time, `seconds`, is over."""
        self._fail(UpstreamTimeoutError(f"{self._peer}: no answer within {seconds:.1f} s"))

    def abort(self) -> None:
        """Close the connection at once; whoever works on a request learns that nobody waits."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection at once, whatever it carries; who waits for an answer is told."""
        self._fail(ConnectionLostError(f"{self._peer}: the connection was closed here"))

    # What follows is called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # a stream's always is
        """See `asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._answer is None:
            self.abort()  # nothing was asked
            return
        self._beside += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(ConnectionLostError(f"{self._peer}: the answer is not HTTP: {error}"))
        if self._beside > MAX_HEAD_BYTES:
            self._fail(UpstreamError(f"the answer's head is larger than {MAX_HEAD_BYTES} bytes", retryable=False))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._transport = None
        answer = self._answer
        if answer is not None and answer.to_the_end and exc is None:
            self.on_message_complete()
        else:
            self._fail(ConnectionLostError(f"{self._peer}: the connection was lost before the answer's end"))
        self._on_lost(self)
        del self._parser  # it refers to us

    # What follows is called by the parser.

    def on_message_begin(self) -> None:
        """An answer begins."""
        if self._answer is None:
            self.abort()  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which nobody asks for."""
        answer = self._answer
        if answer is not None and not answer.status:
            answer.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip())

    def on_headers_complete(self) -> None:
        """The head has been read."""
        answer, status = self._answer, self._parser.get_status_code()
        if answer is None or status < 200:  # news on the way, such as 103: the answer itself follows
            return
        headers = answer.headers
        length = headers.get("content-length")
        answer.status = status
        answer.keep_alive = self._parser.should_keep_alive()
        answer.to_the_end = length is None and "transfer-encoding" not in headers
        if headers.get("content-encoding", "identity") != "identity":
            self._fail(UpstreamError(f"the answer is packed ({headers['content-encoding']})", retryable=False))
        elif answer.limit is None:
            answer.wake()
        elif length is not None and int(length) > answer.limit:
            self._fail(_too_large(answer.limit))

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        self._beside = 0
        answer = self._answer
        if answer is None:
            return
        answer.parts.append(part)
        answer.held += len(part)
        if answer.limit is None:
            self._stream(answer)
        elif answer.held > answer.limit:
            self._fail(_too_large(answer.limit))

    def on_message_complete(self) -> None:
        """The answer's end."""
        answer = self._answer
        if answer is None:
            return
        if not answer.status:
            answer.headers.clear()
            return
        self._answer = None
        answer.complete = True
        answer.wake()

    def _stream(self, answer: Answer) -> None:
        if answer.held > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        answer.wake()

    def _fail(self, error: RollmillError) -> None:
        answer = self._answer
        self.abort()
        if answer is not None:
            answer.error = error
            answer.wake()

    def _unsent(self) -> int:
        """Bytes of the request that an early answer left behind."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0


def _too_large(limit: int) -> UpstreamError:
    return UpstreamError(f"the answer is larger than {limit} bytes", retryable=False)
