"""Kills processes at random moments of a real run: services, the head, the collecting command, the collector service."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.chaos.plans import LONG, RUN_SECONDS, SEED, TASKS, Calm, Site, check_settled, pause

from rollmill import CollectorClient, RunRequest, RunStatus
from rollmill.contracts.json import loads
from rollmill.errors import ConnectError, RunNotFoundError, UpstreamError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

REPEATS, KILLS, PAUSE_SECONDS = (84, 100, (0.2, 1.2)) if LONG else (8, 8, (0.1, 0.5))
IN_FLIGHT = 16
VICTIMS = ("head", "policy", "mcqa", "mcqa_agent")


def _kill_a_service(site: Site, rng: random.Random) -> str | None:
    """Kill -9 one service of the topology, or the head; return its name."""
    candidates = [process for process in site.services() if process.name in VICTIMS]
    if not candidates:
        return None
    victim = rng.choice(sorted(candidates, key=lambda process: process.label))
    os.kill(victim.pid, signal.SIGKILL)
    return victim.name


def _session(site: Site, rng: random.Random, kills: Counter[str]) -> int:
    """Collect until the command ends, or is killed; return its exit code."""
    with site.collecting("--resume") as command:
        while command.poll() is None:
            pause(rng.uniform(*PAUSE_SECONDS))
            if kills.total() >= KILLS:
                break
            if rng.random() < 0.25:
                command.kill()
                kills["the collecting command"] += 1
            elif name := _kill_a_service(site, rng):
                kills[name] += 1
        command.communicate(timeout=RUN_SECONDS)
        return command.returncode


def test_whatever_is_killed_every_rollout_is_settled_once(tmp_path: Path, calm: Calm) -> None:
    rng = random.Random(SEED)
    site = Site(tmp_path, REPEATS, replicas=2)
    kills: Counter[str] = Counter()
    with site.up():
        code = None
        for _ in range(KILLS + 1):
            if code == 0:
                break
            code = _session(site, rng, kills)
            assert code in (0, 1, -signal.SIGKILL), "rollouts were given up on"

    assert code == 0
    assert kills.total() > 0
    assert check_settled(site, calm(REPEATS)) <= IN_FLIGHT * kills.total()


def _status(client: CollectorClient) -> RunStatus | None:
    try:
        return client.status("chaos")
    except (ConnectError, UpstreamError, RunNotFoundError):
        return None  # it is being started again


def test_a_collector_service_that_is_killed_goes_on_with_its_run_by_itself(tmp_path: Path, calm: Calm) -> None:
    rng = random.Random(SEED)
    site = Site(tmp_path, REPEATS, replicas=2, output=tmp_path / "results" / "chaos" / "rollouts.jsonl")
    tasks = [loads(line) for line in TASKS.read_bytes().splitlines()]
    request = RunRequest(id="chaos", rows=tasks, num_repeats=REPEATS, add_seed=True, concurrency=16, max_attempts=100)
    kills, most = 0, max(2, KILLS // 8)
    with site.up():
        [collector] = [process for process in site.services() if process.name == "collector"]
        with CollectorClient(collector.url, token=site.state.token()) as client:
            client.start(request)
            while (status := _status(client)) is None or status.state != "finished":
                if kills < most and status is not None and status.state == "running" and status.completed:
                    [record] = [process for process in site.services() if process.name == "collector"]
                    os.kill(record.pid, signal.SIGKILL)
                    kills += 1
                pause(rng.uniform(*PAUSE_SECONDS))
            rollouts = list(client.rollouts("chaos"))

    assert len(rollouts) == status.completed == site.rollouts
    assert check_settled(site, calm(REPEATS)) <= IN_FLIGHT * most
