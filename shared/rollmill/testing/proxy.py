"""A wire that breaks: a proxy in front of one service that spoils some of the calls that pass, as a seed decides.

It knows just enough HTTP/1.1 to tell one message from the next: heads, and bodies with a `Content-Length`.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

Fault: TypeAlias = Literal[
    "dropped before", "dropped after", "answer lost", "half an answer", "garbage", "slow", "error 500", "429 storm"
]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
"""The connection breaks before the request was passed on; after that, while the service works; or when the answer is
ready; half of the answer arrives; bytes that are no HTTP; an answer in drips; a plain 500; 429 for this call and the
next few."""
STORM_CALLS: Final = 8
DRIPS: Final = 10
_MAX_HEAD = 65_536
_GARBAGE_BYTES = 200


@dataclass(slots=True)
class FaultPlan:
    """Decides which calls are spoiled, and how; the same seed decides the same.

    Args:
        seed: of the decisions.
        share: of the calls that are spoiled, in [0, 1].
        faults: those to choose from; each comes once before any comes again.
        limit: most faults, so that a plan ends.
    """

    seed: int | str
    share: float
    faults: tuple[Fault, ...] = FAULTS
    limit: int = 1000
    counts: Counter[Fault] = field(default_factory=Counter)
    """Faults so far."""
    _deck: list[Fault] = field(default_factory=list)
    _storm: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def next(self) -> Fault | None:
        """Return what happens to the next call; None when it passes."""
        if self._storm:
            self._storm -= 1
            return self._note("429 storm")
        if self.counts.total() >= self.limit or self._rng.random() >= self.share:
            return None
        if not self._deck:
            self._deck = self._rng.sample(self.faults, len(self.faults))
        fault = self._deck.pop()
        if fault == "429 storm":
            self._storm = STORM_CALLS - 1
        return self._note(fault)

    def noise(self) -> bytes:
        """Return bytes that are no answer."""
        return b"\xff" + self._rng.randbytes(_GARBAGE_BYTES)

    def _note(self, fault: Fault) -> Fault:
        self.counts[fault] += 1
        return fault


@dataclass(slots=True)
class FaultyProxy:
    """Passes HTTP calls on to a service and spoils some.

    Args:
        plan: which, and how.
        upstream_url: base URL of the service; may be set later, before the first call.
        paths: only calls to these paths are spoiled; all when empty.
        drip_seconds: between the parts of a slow answer.
        retry_after_seconds: what a 429 asks for.
    """

    plan: FaultPlan
    upstream_url: str = ""
    paths: tuple[str, ...] = ()
    drip_seconds: float = 0.05
    retry_after_seconds: float = 0.2
    url: str = ""
    """Base URL of the proxy, while it is open."""
    cut: bool = False
    """While set, nothing passes: connections are accepted and never answered."""
    _handlers: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def open(self, host: str = "127.0.0.1") -> AsyncIterator["FaultyProxy"]:
        """Listen on a free port until the block ends; what is still being passed on then is cut."""
        server = await asyncio.start_server(self._accept, host, 0)
        self.url = f"http://{host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for handler in self._handlers:
                handler.cancel()
            if self._handlers:
                await asyncio.wait(self._handlers)
            await server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)
        try:
            with suppress(OSError, EOFError, asyncio.CancelledError, asyncio.LimitOverrunError):
                while await self._pass_one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _pass_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass one call on; return whether its connection may carry another one."""
        head, body = await _message(reader)
        if self.cut:
            await reader.read()  # until the caller has had enough of waiting
            return False
        path = head.split(b" ", 2)[1].split(b"?")[0].decode("latin-1")
        fault = self.plan.next() if not self.paths or path in self.paths else None
        if fault == "dropped before":
            return False
        if fault in ("error 500", "429 storm"):
            await _send(writer, self._refusal(fault))
            return True
        return await self._exchange(head + body, fault, writer)

    async def _exchange(self, request: bytes, fault: Fault | None, writer: asyncio.StreamWriter) -> bool:
        parts = urlsplit(self.upstream_url)
        upstream_reader, upstream = await asyncio.open_connection(parts.hostname, parts.port, limit=_MAX_HEAD)
        try:
            await _send(upstream, request)
            if fault == "dropped after":
                return False
            answer = b"".join(await _message(upstream_reader))
        finally:
            upstream.close()
        if fault == "answer lost":
            return False
        if fault in ("half an answer", "garbage"):
            await _send(writer, self.plan.noise() if fault == "garbage" else answer[: len(answer) // 2])
            return False
        if fault == "slow":
            await self._drip(answer, writer)
        else:
            await _send(writer, answer)
        return True

    async def _drip(self, answer: bytes, writer: asyncio.StreamWriter) -> None:
        size = len(answer) // DRIPS + 1
        for start in range(0, len(answer), size):
            await _send(writer, answer[start : start + size])
            await asyncio.sleep(self.drip_seconds)

    def _refusal(self, fault: Fault) -> bytes:
        headers: Mapping[str, str] = {"content-type": "text/plain", "content-length": "4"}
        status = "500 Internal Server Error"
        if fault == "429 storm":
            status, headers = "429 Too Many Requests", {**headers, "retry-after": str(self.retry_after_seconds)}
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", "oops"]
        return "\r\n".join(lines).encode()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Read a head with its blank line, and its body.

    Raises:
        EOFError: the connection ended before.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return head, await reader.readexactly(int(value))
    return head, b""


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
