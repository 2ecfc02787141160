"""What does a hot route save by being answered at the edge instead of through FastAPI's routing?

Run:  python benchmarks/hot_routes.py

Calls the same handler in process, 20,000 times each, interleaved in five rounds; prints the best CPU time per call.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable

from fastapi import APIRouter, FastAPI, Request, Response

from rollmill.client.asgi import AsgiTransport
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import dumps, loads
from rollmill.server.app import build_app
from rollmill.server.calls import Answer, Call, HotRoute, json_answer

BODY = dumps({"responses_create_params": {"input": "x" * 2000}, "agent_ref": {"name": "a"}})
ROUNDS = 5


async def hot(call: Call) -> Answer:
    """The work of both routes: parse, answer."""
    return json_answer(call.json_object())


def routed() -> APIRouter:
    """Make the same route in FastAPI's leanest form: raw request, raw response."""
    router = APIRouter()

    @router.post("/cold")
    async def cold(request: Request) -> Response:
        return Response(dumps(loads(await request.body())), media_type="application/json")

    return router


async def seconds_per_call(send: Callable[[], Awaitable[object]], calls: int) -> float:
    """Return the CPU seconds of one call."""
    start = time.process_time()
    for _ in range(calls):
        await send()
    return (time.process_time() - start) / calls


async def main(calls: int) -> None:
    """Measure and print."""
    plain = FastAPI()
    plain.include_router(routed())
    app = build_app(
        ServiceSettings(name="a"),
        kind="model",
        title="bench",
        routers=[routed()],
        hot=[HotRoute("POST", "/hot", hot, "parse and answer")],
    )
    transport = AsgiTransport({"http://service": app, "http://plain": plain})
    cases = {
        "edge": "http://service/hot",
        "edge, then FastAPI": "http://service/cold",
        "FastAPI alone": "http://plain/cold",
    }
    best = dict.fromkeys(cases, float("inf"))
    async with app.running():
        for _ in range(ROUNDS):
            for name, url in cases.items():

                async def send(url: str = url) -> None:
                    await transport.send("POST", url, headers={"content-type": "application/json"}, body=BODY)

                best[name] = min(best[name], await seconds_per_call(send, calls))
    for name, seconds in best.items():
        print(f"{name:22} {seconds * 1e6:7.1f} us per call   {seconds / best['edge']:.1f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000)
    asyncio.run(main(parser.parse_args().calls))
