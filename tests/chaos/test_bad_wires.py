"""The wires between the services break in every way; the run is the same as over good ones."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.chaos.own_services import own_services
from tests.chaos.plans import LONG, RUN_SECONDS, SEED, Calm, Site, check_settled

from rollmill.artifacts.reader import read_jsonl
from rollmill.testing import FaultPlan, FaultyProxy
from rollmill.testing.proxy import FAULTS, Fault

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

REPEATS = 40 if LONG else 6
SHARE = 0.1
SESSIONS = 40
"""Most times that the collecting command goes on with one run."""
LEASE_SECONDS = 1.5
SPOILED: Mapping[str, tuple[str, ...]] = {
    "head": (),
    "policy": ("/v1/responses",),
    "mcqa": ("/seed_session", "/verify"),
    "mcqa_agent": ("/run",),
}
"""Paths that a plan spoils."""
SPOILABLE = ["policy", "mcqa", "mcqa_agent"]


@asynccontextmanager
async def _wires(site: Site, plans: Mapping[str, FaultPlan]) -> AsyncIterator[Mapping[str, FaultyProxy]]:
    """Serve behind proxies: the services reach each other, and the head, only through them."""
    async with AsyncExitStack() as stack:
        proxies = {}
        for name, paths in SPOILED.items():
            proxy = FaultyProxy(plans.get(name, FaultPlan(0, 0.0)), paths=paths)
            proxies[name] = await stack.enter_async_context(proxy.open())
        stack.enter_context(own_services(site, lease_seconds=LEASE_SECONDS, through=proxies))
        yield proxies


async def _start(site: Site, *extra: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *site.command("--head", site.head, *extra),
        env=site.environ(),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )


async def _end(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Wait for the collecting command; return its exit code and what it said."""
    try:
        _, said = await asyncio.wait_for(process.communicate(), RUN_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, said.decode()


def _plans(names: Sequence[str], faults: tuple[Fault, ...]) -> dict[str, FaultPlan]:
    return {name: FaultPlan(f"{SEED}/{name}", SHARE, faults) for name in names}


def _given_up(site: Site) -> set[str]:
    """The types of the failures that the run's retries do not cover."""
    return {row["failure"]["type"] for row in read_jsonl(site.files.failures) if not row["failure"]["retryable"]}


@pytest.mark.parametrize("services", [SPOILABLE, *([name] for name in SPOILABLE if LONG)], ids="+".join)
async def test_wires_that_break_in_every_way_change_no_result(tmp_path: Path, calm: Calm, services: list[str]) -> None:
    site = Site(tmp_path, REPEATS, delay=0.02)
    async with _wires(site, _plans(services, FAULTS)) as wires:
        code, said = await _end(await _start(site))
        for _ in range(SESSIONS):
            if code != 3:  # rollouts are left that met a plain 500, which only a resume tries again
                break
            assert _given_up(site) == {"upstream-failed"}
            code, said = await _end(await _start(site, "--resume"))

        assert code == 0, said
        assert [set(wires[name].plan.counts) for name in services] == [set(FAULTS)] * len(services)
        faults = sum(proxy.plan.counts.total() for proxy in wires.values())
        assert check_settled(site, calm(REPEATS)) <= faults


async def test_a_head_out_of_reach_for_longer_than_its_lease_stops_no_rollout(tmp_path: Path, calm: Calm) -> None:
    site = Site(tmp_path, 6, delay=1.0)
    async with _wires(site, {}) as wires:
        process = await _start(site)
        await _until(lambda: site.written() >= 16)
        wires["head"].cut = True
        await asyncio.sleep(2 * LEASE_SECONDS)
        during = site.written()
        wires["head"].cut = False
        code, said = await _end(process)

        assert code == 0, said
        assert during > 16
        assert check_settled(site, calm(site.repeats)) == 0


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(RUN_SECONDS):
        while not condition():  # noqa: ASYNC110 (another process brings it about)
            await asyncio.sleep(0.02)
