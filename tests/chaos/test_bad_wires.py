"""The wires between the services break in every way; the run is the same as over good ones."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from rollmill.artifacts.reader import read_jsonl
from rollmill.testing import FaultPlan, FaultyProxy
from rollmill.testing.proxy import FAULTS, Fault
from tests.chaos.plans import HERE, LONG, RUN_SECONDS, SEED, TASKS, Calm, Site, check_settled

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

REPEATS = 84 if LONG else 6
SHARE = 0.1
SESSIONS = 40
"""Most times that the collecting command goes on with one run."""
LEASE_SECONDS = 1.5
TOKEN = "chaos-token"
SPOILED = {"mcqa_agent": ("/run",), "policy": ("/v1/responses",), "mcqa": ("/seed_session", "/verify")}
SETTINGS: Mapping[str, tuple[str, dict[str, object]]] = {
    "policy": ("scripted", {"answers": [str(TASKS)], "skill": 0.6}),
    "mcqa": ("counted:Counted", {}),
    "mcqa_agent": ("single_turn", {"model": "policy", "resources": "mcqa"}),
}


@contextmanager
def _service(site: Site, name: str, use: str, settings: Mapping[str, object]) -> Iterator[str]:
    """Serve in a process of its own on a free port; gives its URL. It ends with its standard input."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener, (site.folder / f"{name}.log").open("wb") as log:
        path = site.folder / f"{name}.json"
        path.write_text(json.dumps({"name": name, "token": TOKEN, **settings}))
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "rollmill.local.serve_process", use, "--fd", str(number), "--with-parent"],
            env={**os.environ, "ROLLMILL_SETTINGS_FILE": str(path)},
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[number],
        )
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield url
    finally:
        process.kill()
        process.communicate()


class Wires:
    """Services that reach each other, and the head, only through proxies."""

    def __init__(self, site: Site, head: FaultyProxy, proxies: Mapping[str, FaultyProxy]) -> None:
        self.site = site
        self.head = head
        self.proxies = proxies

    @classmethod
    @asynccontextmanager
    async def laid(cls, site: Site, plans: Mapping[str, FaultPlan]) -> AsyncIterator["Wires"]:
        async with AsyncExitStack() as stack:
            processes = stack.enter_context(ExitStack())
            lease = {"lease_seconds": LEASE_SECONDS}
            head = FaultyProxy(FaultPlan(0, 0.0), processes.enter_context(_service(site, "head", "head", lease)))
            await stack.enter_async_context(head.open())
            proxies = {}
            for name, (use, settings) in SETTINGS.items():
                proxy = FaultyProxy(plans.get(name, FaultPlan(0, 0.0)), paths=SPOILED[name])
                proxies[name] = await stack.enter_async_context(proxy.open())
                placed = {**settings, "head_url": head.url, "advertise_url": proxy.url}
                if name == "mcqa":
                    placed["executions"] = str(site.executions)
                if name == "policy":
                    placed["delay_seconds"] = site.delay
                proxy.upstream_url = processes.enter_context(_service(site, name, use, placed))
            yield cls(site, head, proxies)

    async def start(self, *extra: str) -> asyncio.subprocess.Process:
        """Start the collecting command."""
        return await asyncio.create_subprocess_exec(
            *self.site.command("--head", self.head.url, *extra),
            env={**self.site.environ(), "ROLLMILL_TOKEN": TOKEN},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )

    async def collect(self, *extra: str) -> tuple[int | None, str]:
        """Run the collecting command to its end; return its exit code and what it said."""
        process = await self.start(*extra)
        try:
            _, said = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode, said.decode()

    def faults(self) -> int:
        return sum(proxy.plan.counts.total() for proxy in self.proxies.values())


def _plans(names: Sequence[str], faults: tuple[Fault, ...]) -> dict[str, FaultPlan]:
    return {name: FaultPlan(f"{SEED}/{name}/{faults}", SHARE, faults) for name in names}


def _given_up(site: Site) -> set[str]:
    """The types of the failures that the run's retries do not cover."""
    return {row["failure"]["type"] for row in read_jsonl(site.files.failures) if not row["failure"]["retryable"]}


@pytest.mark.parametrize("services", [list(SETTINGS), *([name] for name in SETTINGS if LONG)], ids="+".join)
async def test_wires_that_break_in_every_way_change_no_result(
    tmp_path: Path, calm: Calm, services: list[str]
) -> None:
    site = Site(tmp_path, REPEATS, delay=0.02)
    async with Wires.laid(site, _plans(services, FAULTS)) as wires:
        code, said = await wires.collect()
        for _ in range(SESSIONS):
            if code != 3:  # rollouts are left that met a plain 500, which is nobody's to retry but ours
                break
            assert _given_up(site) == {"upstream-failed"}
            code, said = await wires.collect("--resume")

        assert code == 0, said
        assert [set(wires.proxies[name].plan.counts) for name in services] == [set(FAULTS)] * len(services)
        assert check_settled(site, calm(REPEATS)) <= wires.faults()


async def test_a_head_out_of_reach_for_longer_than_its_lease_stops_no_rollout(tmp_path: Path, calm: Calm) -> None:
    site = Site(tmp_path, REPEATS, delay=1.0)
    async with Wires.laid(site, {}) as wires:
        process = await wires.start()
        await _until(lambda: site.written() >= 16)
        wires.head.cut = True
        await asyncio.sleep(2 * LEASE_SECONDS)
        during = site.written()
        wires.head.cut = False
        _, said = await asyncio.wait_for(process.communicate(), RUN_SECONDS)

        assert process.returncode == 0, said.decode()
        assert during > 16
        assert check_settled(site, calm(REPEATS)) == 0


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(RUN_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)
