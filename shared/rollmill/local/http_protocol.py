"""uvicorn's HTTP protocol, with bounds that it leaves to a proxy: there is none before our services."""

import asyncio
from typing import Final, Literal, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADERS: Final = 100
MAX_HEAD_BYTES: Final = 64 * 1024
"""What may still arrive of a head that is not whole with the first piece; a piece has at most 256 KiB."""
HEAD_SECONDS: Final = 30.0
"""A head must be whole so long after its first byte, or after the connection was made."""
BODY_SECONDS: Final = 600.0
"""A body must be whole so long after its head."""

_Part: TypeAlias = Literal["", "head", "body"]


class BoundedHttpProtocol(HttpToolsProtocol):
    """Closes connections whose requests have too large a head, or do not become whole in time.

    A request that arrives in one piece, as nearly all do, costs two comparisons.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._unfinished: _Part = ""
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = self.loop.call_later(HEAD_SECONDS, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._wait_for("")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a piece."""
        before = self._unfinished
        super().data_received(data)
        now = self._unfinished
        if now != before or (not now and self._patience is not None):
            self._wait_for(now)
        if now == before == "head":
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._unfinished = "head"
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """End a head."""
        if len(self.headers) > MAX_HEADERS:
            raise ValueError(f"more than {MAX_HEADERS} headers")  # the parser's error: answered with 400
        self._unfinished = "body"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request."""
        self._unfinished = ""
        super().on_message_complete()

    def _wait_for(self, part: _Part) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if part:
            seconds = HEAD_SECONDS if part == "head" else BODY_SECONDS
            self._patience = self.loop.call_later(seconds, self.transport.close)
