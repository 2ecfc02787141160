import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from rollmill.contracts.json import JsonObject
from rollmill.contracts.services import Kind
from rollmill.errors import ConfigError, ConflictError
from rollmill.local import launcher as launcher_module
from rollmill.local.launcher import Launcher, LaunchError, ending, shown_path
from rollmill.local.plan import ProcessPlan
from rollmill.local.processes import ProcessRef, process_ref
from rollmill.local.sockets import bound_address, listen
from rollmill.local.spawning import Spawner, StartOrder, new_spawner, service_environment
from rollmill.local.state import StateDir
from rollmill.testing import FakeClock

TOKEN = "t0k3n"
NOBODY = 2**22 + 1


def plan(name: str, use: str, kind: Kind = "resources", *, label: str = "", port: int = 0) -> ProcessPlan:
    return ProcessPlan(label or name, name, kind, use, port, {"name": name, "token": TOKEN})


HEAD = plan("head", "head", "head")


@dataclass
class FakeChild:
    pid: int = NOBODY
    code: int | None = None

    def poll(self) -> int | None:
        return self.code


@dataclass
class FakeSpawner:
    """Starts nothing; `crashing` labels have ended as soon as anybody looks."""

    crashing: dict[str, int] = field(default_factory=dict)
    orders: list[StartOrder] = field(default_factory=list)
    settings: list[JsonObject] = field(default_factory=list)
    fail: bool = False

    def start(self, order: StartOrder, *, listener: socket.socket, stdin: int, log: int) -> FakeChild:
        if self.fail:
            raise ConfigError("no more processes")
        self.orders.append(order)
        self.settings.append(json.loads(Path(order.settings).read_bytes()))
        os.write(log, b'{"event": "serving", "level": "info"}\nlast words\n')
        return FakeChild(code=self.crashing.get(order.label))

    def __enter__(self) -> "FakeSpawner":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "home")


@pytest.fixture
def told() -> list[str]:
    return []


Make = Callable[..., Launcher]


@pytest.fixture
def make(state: StateDir, told: list[str]) -> Make:
    def launcher(
        spawner: Spawner, *, foreground: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> Launcher:
        return Launcher(
            state,
            spawner,
            topology="/t.yaml",
            token=TOKEN,
            foreground=foreground,
            tell=told.append,
            clock=clock,
        )

    return launcher


@pytest.fixture
def spawner(tiny_services: Path) -> Iterator[Spawner]:
    with new_spawner(service_environment(os.environ)) as made:
        yield made


async def test_everything_is_started_told_of_the_head_recorded_and_then_ready(
    make: Make, spawner: Spawner, state: StateDir
) -> None:
    launcher = make(spawner)
    echoes = [plan("echo", "tiny_services:Echo", label=f"echo@{number}") for number in (1, 2)]
    try:
        launcher.start([HEAD, *echoes], host="127.0.0.1")
        assert await launcher.until_ready(asyncio.Event(), timeout_seconds=30)

        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
            services = (await client.get(f"{launcher.head_url}/v1/services")).json()["services"]
        recorded = state.load()
    finally:
        await launcher.stop(grace_seconds=10)

    urls = {process.label: process.url for process in launcher.processes}
    assert {service["url"] for service in services} == {urls["echo@1"], urls["echo@2"]}
    assert recorded is not None
    assert (recorded.head_url, recorded.topology, recorded.launcher_pid) == (urls["head"], "/t.yaml", os.getpid())
    assert {process.label for process in recorded.processes} == set(urls)
    assert not recorded.is_alive()
    assert state.load() is None
    assert list((state.path / "settings").iterdir()) == []


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("tiny_services:Broken", ["broken ended with exit code 3 during start", "RuntimeError: no database here"]),
        ("tiny_services:Quitter", ["broken ended with exit code 7 during start", "(empty)"]),
        ("tiny_services:not_there", ["broken ended with exit code 1 during start", "no attribute 'not_there'"]),
    ],
)
async def test_a_process_that_dies_while_starting_is_named_with_the_end_of_its_log(
    make: Make, spawner: Spawner, use: str, words: list[str]
) -> None:
    launcher = make(spawner)
    launcher.start([HEAD, plan("broken", use)], host="127.0.0.1")
    try:
        with pytest.raises(LaunchError) as caught:
            await launcher.until_ready(asyncio.Event(), timeout_seconds=30)
    finally:
        await launcher.stop(grace_seconds=10)

    assert all(word in caught.value.detail for word in words)
    assert len(caught.value.detail.splitlines()) <= 22
    assert not any(process.ref.is_running() for process in launcher.processes)


async def test_in_the_foreground_a_crashed_process_comes_back_where_it_was(
    make: Make, spawner: Spawner, told: list[str], state: StateDir
) -> None:
    launcher = make(spawner, foreground=True)
    stop = asyncio.Event()
    launcher.start([HEAD, plan("echo", "tiny_services:Echo")], host="127.0.0.1")
    try:
        await launcher.until_ready(stop, timeout_seconds=30)
        echo = launcher.processes[1]
        before, url = echo.ref, echo.url
        watch = asyncio.create_task(launcher.supervise(stop))
        os.kill(before.pid, signal.SIGKILL)
        await until(lambda: echo.ref != before)
        assert await launcher.until_ready(asyncio.Event(), timeout_seconds=30)
        recorded = state.load()
        stop.set()
        await watch
    finally:
        await launcher.stop(grace_seconds=10)

    assert echo.url == url
    assert recorded is not None
    assert recorded.processes[1].ref == echo.ref
    assert told == [f"echo was killed by signal 9; starting it again in 0.25 s (log: {shown_path(echo.log)})"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (a process of its own sets no event)
            await asyncio.sleep(0.02)


async def test_a_process_that_keeps_crashing_is_given_up_after_five_restarts(
    make: Make, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "WATCH_SECONDS", 0.01)
    clock, fake = FakeClock(), FakeSpawner({"head": 3})
    launcher = make(fake, clock=clock)
    launcher.start([HEAD], host="127.0.0.1")

    async def pass_time() -> None:
        while True:
            clock.advance(0.5)
            await asyncio.sleep(0.01)

    passing = asyncio.create_task(pass_time())
    try:
        with pytest.raises(LaunchError, match="every service crashed too often"):
            await asyncio.wait_for(launcher.supervise(asyncio.Event()), 60)
    finally:
        passing.cancel()
        await launcher.stop(grace_seconds=0)

    assert len(fake.orders) == 6
    assert [line.partition(" (")[0].partition("; ")[2] for line in told] == [
        *(f"starting it again in {delay} s" for delay in ("0.25", "0.5", "1", "2", "4")),
        "crashed too often, not starting it again",
    ]


async def test_a_restart_that_cannot_be_made_counts_as_a_crash(
    make: Make, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "WATCH_SECONDS", 0.01)
    clock, fake = FakeClock(), FakeSpawner({"head": 3})
    launcher = make(fake, clock=clock)
    launcher.start([HEAD], host="127.0.0.1")
    fake.fail = True
    stop = asyncio.Event()
    watch = asyncio.create_task(launcher.supervise(stop))
    while len(told) < 3:
        clock.advance(1.0)
        await asyncio.sleep(0.05)
    stop.set()
    await watch
    await launcher.stop(grace_seconds=0)

    assert told[1] == "head: no more processes"
    assert "starting it again in 0.5 s" in told[2]


async def test_when_a_port_is_in_use_nothing_is_started_and_the_option_is_named(make: Make, state: StateDir) -> None:
    fake = FakeSpawner()
    launcher = make(fake)
    with listen("127.0.0.1", 0) as taken:
        port = bound_address(taken)[1]
        with pytest.raises(ConfigError, match=f"port {port} .* in use; .*--head-port"):
            launcher.start([plan("echo", "x"), plan("head", "head", "head", port=port)], host="127.0.0.1")

    await launcher.stop(grace_seconds=1)
    assert fake.orders == []
    assert state.load() is None


async def test_a_second_deployment_in_the_same_folder_is_refused_and_harms_nothing(
    make: Make, state: StateDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(FakeSpawner()), make(FakeSpawner())
    first.start([HEAD], host="127.0.0.1")
    monkeypatch.setattr(ProcessRef, "is_running", lambda self: True)
    with pytest.raises(ConflictError, match=r"run already.*rollmill down"):
        second.start([HEAD], host="127.0.0.1")
    monkeypatch.undo()
    await second.stop(grace_seconds=0)

    assert state.load() is not None
    assert list((state.path / "settings").iterdir()) != []
    await first.stop(grace_seconds=0)


async def test_what_a_dead_deployment_left_behind_is_cleaned_up_by_the_next(make: Make, state: StateDir) -> None:
    make(FakeSpawner()).start([HEAD, plan("old", "x")], host="127.0.0.1")

    launcher = make(FakeSpawner())
    launcher.start([HEAD], host="127.0.0.1")

    assert [path.name for path in (state.path / "settings").iterdir()] == ["head.json"]
    await launcher.stop(grace_seconds=0)


async def test_each_process_is_told_where_it_is_and_where_the_head_is_but_the_head_is_not(make: Make) -> None:
    fake = FakeSpawner()
    launcher = make(fake)
    launcher.start([HEAD, plan("echo", "x")], host="127.0.0.1")
    await launcher.stop(grace_seconds=0)

    head, echo = fake.settings
    assert "head_url" not in head
    assert echo["head_url"] == head["advertise_url"] == launcher.head_url
    assert echo["advertise_url"] == launcher.processes[1].url
    assert [order.with_parent for order in fake.orders] == [False, False]


async def test_who_is_not_ready_in_time_is_named(make: Make) -> None:
    launcher = make(FakeSpawner())
    launcher.start([HEAD, plan("echo", "x")], host="127.0.0.1")

    with pytest.raises(LaunchError, match=r"not ready within 0\.1 s \(--ready-timeout\): head, echo") as caught:
        await launcher.until_ready(asyncio.Event(), timeout_seconds=0.1)

    assert "info     serving\nlast words" in caught.value.detail
    await launcher.stop(grace_seconds=0)


async def test_waiting_ends_when_asked_to_stop(make: Make) -> None:
    launcher = make(FakeSpawner())
    launcher.start([HEAD], host="127.0.0.1")
    stop = asyncio.Event()
    stop.set()

    assert await launcher.until_ready(stop, timeout_seconds=1000) is False
    await launcher.stop(grace_seconds=0)


async def test_a_restarted_service_takes_another_port_when_its_own_is_taken(make: Make) -> None:
    launcher = make(FakeSpawner())
    launcher.start([HEAD, plan("echo", "x")], host="127.0.0.1")
    echo, old = launcher.processes[1], launcher.processes[1].url
    with listen("127.0.0.1", int(old.rpartition(":")[2])):
        echo.open_socket()
    new = echo.url
    echo.close_socket()
    await launcher.stop(grace_seconds=0)

    assert new != old


async def test_a_process_that_has_to_be_killed_is_named(
    make: Make, spawner: Spawner, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = make(spawner)
    launcher.start([HEAD], host="127.0.0.1")
    await launcher.until_ready(asyncio.Event(), timeout_seconds=30)
    os.kill(launcher.processes[0].ref.pid, signal.SIGSTOP)

    await launcher.stop(grace_seconds=0.2)

    assert told == ["head did not stop in time and was killed"]


def test_endings_and_paths_are_shown_to_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert (ending(3), ending(-9)) == ("ended with exit code 3", "was killed by signal 9")
    assert shown_path(tmp_path / "a" / "b.log") == "a/b.log"
    assert shown_path("/elsewhere/b.log") == "/elsewhere/b.log"
    assert process_ref(os.getpid()).is_running()
