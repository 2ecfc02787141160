"""The page in a real browser, with real services behind it. Skipped, and said so, where there is no browser."""

import asyncio
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from pydantic import SecretStr

from rollmill.client.asgi import AsgiApp
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, loads
from rollmill_services.agents.tool_loop.agent import ToolLoopSettings
from rollmill_services.agents.tool_loop.app import create_app as create_agent
from rollmill_services.collector.app import create_app as create_collector
from rollmill_services.collector.settings import CollectorSettings
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.settings import HeadSettings
from rollmill_services.models.scripted.app import create_app as create_model
from rollmill_services.models.scripted.settings import ScriptedSettings
from rollmill_services.profiler.app import create_app as create_profiler
from rollmill_services.profiler.settings import ProfilerSettings
from rollmill_services.resources.mcqa.app import create_app as create_mcqa
from rollmill_services.resources.mcqa.verifier import McqaSettings
from rollmill_services.resources.weather.app import create_app as create_weather

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]
T = TypeVar("T")

TOKEN = "token-of-the-browser-tests"
DATA = Path(__file__).parents[2] / "examples/data"
WAIT_SECONDS = 45
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Suite:
    """Services that found each other, in a thread with an event loop of their own."""

    def __init__(self, serve: Serve, data_dir: Path) -> None:
        self.data_dir = data_dir
        self._serve = serve
        self._stacks: dict[str, AsyncExitStack] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ports: dict[str, int] = {}
        self.url = f"http://127.0.0.1:{self.port('head')}"
        self.http = httpx.Client(headers={"authorization": f"Bearer {TOKEN}"}, timeout=WAIT_SECONDS)

    def port(self, name: str) -> int:
        if name not in self._ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._ports[name] = int(probe.getsockname()[1])
        return self._ports[name]

    def do(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    def _common(self, name: str) -> JsonObject:
        own = f"http://127.0.0.1:{self.port(name)}"
        secrets = {"token": SecretStr(TOKEN), "session_secret": SecretStr("s")}
        return {"name": name, "head_url": self.url, "advertise_url": own, **secrets}

    def start(self, name: str, **settings: object) -> None:
        app = _factories(self.data_dir)[name](self._common(name) | settings)

        async def begin() -> None:
            stack = AsyncExitStack()
            await stack.enter_async_context(self._serve(app, port=self.port(name)))
            self._stacks[name] = stack

        self.do(begin())

    def stop(self, name: str) -> None:
        async def end() -> None:
            await self._stacks.pop(name).aclose()

        self.do(end())

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Do something while a service is down."""
        self.stop(name)
        try:
            yield
        finally:
            self.start(name)
            self.wait(lambda: name in [one["name"] for one in self.ask("head", "GET", "/v1/services")["services"]])

    def ask(self, kind: str, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        answer = self.http.request(method, f"http://127.0.0.1:{self.port(kind)}{path}", json=body)
        answer.raise_for_status()
        found: JsonObject = answer.json()
        return found

    def wait(self, true: Callable[[], bool]) -> None:
        async def until() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                while not await asyncio.to_thread(true):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        self.do(until())

    def run(self, run_id: str, **request: object) -> None:
        """Collect a run and wait for its end."""
        self.ask("collector", "POST", "/v1/runs", {"id": run_id, **request})
        self.wait(lambda: self.state(run_id) not in ("running", "paused"))

    def curl(self, command: str) -> JsonObject:
        """Run a command that the page made."""
        answer: JsonObject = loads(self._shell(command))
        return answer

    def arguments(self, command: str) -> list[str]:
        """Tell what curl would be given by a command that the page made."""
        fake = self._tool("curl", 'printf "%s\\0" "$@"')
        try:
            return self._shell(command).decode().split("\0")[:-1]
        finally:
            fake.unlink()

    def _tool(self, name: str, script: str) -> Path:
        path = self.data_dir / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        return path

    def _shell(self, command: str) -> bytes:
        tools = self._tool("rollmill", f"echo {TOKEN}").parent
        env = {"PATH": f"{tools}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", command], env=env, capture_output=True, timeout=WAIT_SECONDS, check=True)
        return done.stdout

    def state(self, run_id: str) -> str:
        return str(self.ask("collector", "GET", f"/v1/runs/{run_id}")["state"])

    def log_in(self, page: Page, token: str = TOKEN) -> None:
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()

    def close(self) -> None:
        for name in reversed(list(self._stacks)):
            self.stop(name)
        self.http.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_SECONDS)
        self._loop.close()


def _factories(data_dir: Path) -> dict[str, Callable[[JsonObject], AsgiApp]]:
    in_data = {"data_dir": data_dir}
    return {
        "head": lambda _: create_head(
            HeadSettings(token=SecretStr(TOKEN), session_secret=SecretStr("s"), lease_seconds=2)
        ),
        "collector": lambda own: create_collector(CollectorSettings.model_validate(own | in_data)),
        "profiler": lambda own: create_profiler(ProfilerSettings.model_validate(own | in_data)),
        "weather": lambda own: create_weather(ServiceSettings.model_validate(own)),
        "mcqa": lambda own: create_mcqa(McqaSettings.model_validate(own)),
        **dict.fromkeys(("policy", "slow"), lambda own: create_model(ScriptedSettings.model_validate(own))),
        **dict.fromkeys(
            ("weather_agent", "mcqa_agent", "slow_agent"),
            lambda own: create_agent(ToolLoopSettings.model_validate(own)),
        ),
    }


@pytest.fixture(scope="module")
def suite(browser: Browser, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Suite]:
    """Head, collector, profiler, two environments and three agents, one of them slow."""
    data_dir = tmp_path_factory.mktemp("data")
    for name in ("weather", "mcqa"):
        shutil.copy(DATA / f"{name}.jsonl", data_dir)
    found = Suite(serve, data_dir)
    try:
        for name in ("head", "collector", "profiler", "weather", "mcqa"):
            found.start(name)
        found.start("policy", answers=[str(DATA / "mcqa.jsonl")], skill=0.6)
        found.start("slow", delay_seconds=0.25)
        found.start("weather_agent", model="policy", resources="weather")
        found.start("mcqa_agent", model="policy", resources="mcqa")
        found.start("slow_agent", model="slow", resources="weather")
        found.wait(lambda: len(found.ask("head", "GET", "/v1/services")["services"]) == 9)
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, or the one that the variable CHROMIUM names."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("NO BROWSER: the page is not tested; install one (apt-get install chromium) or set CHROMIUM")
    expect.set_options(timeout=WAIT_SECONDS * 1000)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def fresh(browser: Browser, suite: Suite) -> Iterator[Page]:
    """A page of a browser that has never been here."""
    context = browser.new_context(base_url=suite.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(WAIT_SECONDS * 1000)
    page = context.new_page()
    uncaught: list[str] = []
    page.on("pageerror", lambda error: uncaught.append(str(error)))
    yield page
    context.close()
    assert uncaught == []


@pytest.fixture
def page(fresh: Page, suite: Suite) -> Page:
    """A page whose person has logged in."""
    fresh.goto("/ui/")
    suite.log_in(fresh)
    expect(fresh.get_by_role("heading", name="Runs")).to_be_visible()
    return fresh
