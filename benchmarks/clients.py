"""What does one call to another service cost the caller: with our HTTP client, with aiohttp, with httpx?

Run:  python benchmarks/clients.py [--calls 20000] [--rounds 3] [--json out.json]

Each client posts 2 KB to a bare ASGI application in another process (floor.py) and reads the answer, which is as
large, with 64 and with 512 calls in flight, all on uvloop and with the headers of a call between services. Printed is
the least CPU time per call of the calling process over the rounds, which the clients take in turns.
"""

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import httpx
import uvloop

from floor import URLS, bare_services
from report import machine, table, write_results
from rollmill.client.http import HttpTransport
from rollmill.contracts.json import dumps, loads

BODY = dumps({"responses_create_params": {"input": "x" * 2000}, "agent_ref": {"name": "a"}})
HEADERS = {
    "authorization": f"Bearer {'t' * 43}",
    "content-type": "application/json",
    "x-request-id": "0123456789abcdef01234567",
    "x-rollmill-deadline": "1790000000.000",
    "idempotency-key": "20261120-193800-weather-3fa1-12-3-0",
}
SECONDS = 60.0

Send = Callable[[], Awaitable[int]]
"""Posts once and returns the status."""
Client = Callable[[str, int], AbstractAsyncContextManager[Send]]
"""URL and calls in flight to a way to post."""


@asynccontextmanager
async def ours(url: str, _: int) -> AsyncIterator[Send]:
    """Post as services do."""
    transport = HttpTransport()

    async def send() -> int:
        return (await transport.send("POST", url, headers=HEADERS, body=BODY, timeout=SECONDS)).status

    yield send
    await transport.aclose()


@asynccontextmanager
async def with_aiohttp(url: str, _: int) -> AsyncIterator[Send]:
    """Post with a session without limits."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def send() -> int:
            async with asyncio.timeout(SECONDS), session.post(url, headers=HEADERS, data=BODY) as response:
                await response.read()
                return response.status

        yield send


@asynccontextmanager
async def with_httpx(url: str, in_flight: int) -> AsyncIterator[Send]:
    """Post with a client that may open as many connections as there are calls."""
    limits = httpx.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    async with httpx.AsyncClient(limits=limits, timeout=SECONDS) as client:

        async def send() -> int:
            return (await client.post(url, headers=HEADERS, content=BODY)).status_code

        yield send


CLIENTS: dict[str, tuple[Client, float]] = {
    "ours": (ours, 1.0),
    "aiohttp": (with_aiohttp, 1.0),
    "httpx": (with_httpx, 0.1),
}
"""By name, with the share of the calls that it makes: one takes so long that fewer must do."""


async def seconds_per_call(client: Client, url: str, calls: int, in_flight: int) -> float:
    """Return the CPU seconds of one call, the opening of connections left out."""
    async with client(url, in_flight) as send:
        await _posts(send, in_flight, in_flight)
        start = time.process_time()
        await _posts(send, calls, in_flight)
        return (time.process_time() - start) / calls


async def _posts(send: Send, calls: int, in_flight: int) -> None:
    numbers = iter(range(calls))

    async def worker() -> None:
        for _ in numbers:
            if await send() != 200:
                raise RuntimeError("the bare service did not answer 200")

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(worker())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    best: dict[str, dict[int, float]] = {name: {} for name in CLIENTS}
    with bare_services():
        url = loads(os.environ[URLS])["weather"] + "/verify"  # answers what it is sent
        for _ in range(arguments.rounds):
            for in_flight in arguments.in_flight:
                for name, (client, share) in CLIENTS.items():
                    calls = max(1, int(arguments.calls * share))
                    found = uvloop.run(seconds_per_call(client, url, calls, in_flight)) * 1e6
                    best[name][in_flight] = min(found, best[name].get(in_flight, found))
    print(machine())
    header = ["CPU per call of the caller", *(f"{number} in flight" for number in arguments.in_flight)]
    print(table(header, [[name, *(f"{found[n]:.0f} us" for n in arguments.in_flight)] for name, found in best.items()]))
    write_results(arguments.json, best)


if __name__ == "__main__":
    main()
