"""The floor of collect.py: the six calls of a rollout between bare ASGI applications, with nothing of Rollmill's.

orjson, uvicorn with uvloop and httptools, and aiohttp, as in the services; no token, no deadline, no session, no retry,
no file. Bodies are as large as those of the weather example. Run as a program, it is one of the services, which prints
its port, or the driver.
"""

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import aiohttp
import orjson
import psutil
import uvicorn
import uvloop
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from running import cpu_seconds

QUESTION = "What is the weather in Lisbon right now?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "get_weather", "description": "Get the weather.", "parameters": PARAMETERS}
REPORT = b'{"city":"Lisbon","weather_description":"The weather in Lisbon is drizzly with no wind and 5 degrees."}'
ROW = {"responses_create_params": {"input": [{"role": "user", "content": QUESTION}]}, "agent_ref": {"name": "agent"}}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city":"Lisbon"}'}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": REPORT.decode()}]}
RESPONSE = {
    "id": "resp_1",
    "tools": [TOOL],
    "usage": {"input_tokens": 52, "output_tokens": 38, "total_tokens": 90},
    **{f"parameter_of_the_request_{number}": None for number in range(24)},
}
URLS = "FLOOR_URLS"

Post = Callable[[str, bytes], Awaitable[bytes]]
"""Service and path, and body, to the answer's body."""
Handler = Callable[[str, bytes], Awaitable[bytes]]


async def policy(_: str, body: bytes) -> bytes:
    """Ask for the tool, and then answer."""
    items = orjson.loads(body)["input"]
    return orjson.dumps({**RESPONSE, "output": [CALL if len(items) == 1 else ANSWER]})


async def weather(path: str, body: bytes) -> bytes:
    """Open a session, report, or grade."""
    value = orjson.loads(body)
    if path == "/get_weather":
        return REPORT
    return orjson.dumps({**value, "reward": 1.0} if path == "/verify" else {})


def agent(post: Post) -> Handler:
    """Make the agent's handler: seed, two model calls with a tool call between them, verify."""

    async def run(path: str, body: bytes) -> bytes:
        row = orjson.loads(body)
        await post("weather/seed_session", body)
        done: list[object] = []
        response = {}
        for _ in range(2):
            request = {"input": [*row["responses_create_params"]["input"], *done], "tools": [TOOL]}
            response = orjson.loads(await post("policy/v1/responses", orjson.dumps(request)))
            done += response["output"]
            if len(done) == 1:
                report = await post("weather/get_weather", CALL["arguments"].encode())
                done.append({"type": "function_call_output", "call_id": "call_1", "output": report.decode()})
        row["response"] = {**response, "output": done}
        graded = orjson.loads(await post("weather/verify", orjson.dumps(row)))
        return orjson.dumps(graded)

    return run


def bare(handler: Handler) -> ASGIApp:
    """Wrap a handler of bodies into an ASGI application."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        body = message["body"]
        while message.get("more_body"):
            message = await receive()
            body += message["body"]
        answer = await handler(scope["path"], body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return app


def in_process(apps: dict[str, ASGIApp]) -> Post:
    """Post to applications by calling them."""

    async def post(target: str, body: bytes) -> bytes:
        name, _, path = target.partition("/")
        sent: dict[str, bytes] = {}

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            sent.update(message)

        await apps[name]({"type": "http", "path": f"/{path}"}, receive, send)
        return sent["body"]

    return post


@asynccontextmanager
async def over_http() -> AsyncIterator[Post]:
    """Post to the services whose URLs are in the environment."""
    urls: dict[str, str] = orjson.loads(os.environ[URLS])
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def post(target: str, body: bytes) -> bytes:
            name, _, path = target.partition("/")
            async with session.post(f"{urls[name]}/{path}", data=body) as response:
                return await response.read()

        yield post


async def drive(post: Post, rollouts: int, concurrency: int) -> None:
    """Run so many rollouts and check each."""
    numbers = iter(range(rollouts))

    async def worker() -> None:
        for number in numbers:
            row = orjson.loads(await post("agent/run", orjson.dumps({**ROW, "_ng_task_index": number})))
            if row["_ng_task_index"] != number or row["reward"] != 1.0:
                raise RuntimeError(f"rollout {number} has another's answer")

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


def embedded_seconds(rollouts: int, concurrency: int) -> dict[str, float]:
    """Return the CPU seconds of rollouts in this process."""
    apps = {"policy": bare(policy), "weather": bare(weather)}
    apps["agent"] = bare(agent(in_process(apps)))
    start = time.process_time()
    uvloop.run(drive(in_process(apps), rollouts, concurrency))
    return {"everything": time.process_time() - start}


@contextmanager
def bare_services() -> Iterator[dict[str, psutil.Process]]:
    """Start the three bare services and yield their processes by name."""
    urls: dict[str, str] = {}
    found: dict[str, psutil.Process] = {}
    with ExitStack() as stack:
        for name in ("policy", "weather", "agent"):
            os.environ[URLS] = orjson.dumps(urls).decode()
            process = stack.enter_context(psutil.Popen([sys.executable, __file__, name], stdout=subprocess.PIPE))
            stack.callback(process.terminate)
            urls[name] = f"http://127.0.0.1:{int(process.stdout.readline())}"
            found[name] = process
        os.environ[URLS] = orjson.dumps(urls).decode()
        yield found


def http_seconds(services: dict[str, psutil.Process], rollouts: int, concurrency: int) -> dict[str, float]:
    """Return the CPU seconds that each process used for rollouts between the bare services."""
    before, own = cpu_seconds(services), os.times()
    subprocess.run([sys.executable, __file__, "drive", str(rollouts), str(concurrency)], check=True)
    after, ended = cpu_seconds(services), os.times()
    driver = ended.children_user + ended.children_system - own.children_user - own.children_system
    return {"driver": driver} | {name: after[name] - before[name] for name in services}


async def serve(name: str) -> None:
    """Serve one of the applications until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(listener.getsockname()[1], flush=True)
    async with over_http() as post:
        app = bare({"policy": policy, "weather": weather}.get(name) or agent(post))
        config = uvicorn.Config(
            app, http="httptools", lifespan="off", log_level="error", access_log=False, timeout_keep_alive=75
        )
        await uvicorn.Server(config).serve(sockets=[listener])


async def drive_over_http(rollouts: int, concurrency: int) -> None:
    """Drive the bare services."""
    async with over_http() as post:
        await drive(post, rollouts, concurrency)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["policy", "weather", "agent", "drive"])
    parser.add_argument("numbers", type=int, nargs="*", help="of the driver: rollouts, concurrency")
    arguments = parser.parse_args()
    work = drive_over_http(*arguments.numbers) if arguments.role == "drive" else serve(arguments.role)
    uvloop.run(work)
