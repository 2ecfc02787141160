"""Processes stand still for a while, and head and services are killed and started again meanwhile."""

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from tests.chaos.own_services import TOKEN, OwnServices, own_services
from tests.chaos.plans import LONG, RUN_SECONDS, SEED, TASKS, Calm, Site, check_settled, pause, until

from rollmill import CollectorClient, RunRequest
from rollmill.contracts.json import loads

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

REPEATS = 24 if LONG else 6
ROUNDS = 3 if LONG else 1
SESSIONS = 40
"""Most times that the collecting command goes on with one run."""
LEASE_SECONDS = 1.0
SHORT, LASTING = LEASE_SECONDS / 4, 1.6 * LEASE_SECONDS
"""Seconds: less than a heartbeat, and more than a lease."""
VICTIMS = ("mcqa_agent", "mcqa", "policy", "head", "the collecting command")


def _still(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        pause(seconds)
    finally:
        os.kill(pid, signal.SIGCONT)


def _disturb(services: OwnServices, rng: random.Random, command: "subprocess.Popen[str]", *, kill_head: bool) -> int:
    """Stop each kind of process, for less and for more than a lease, while the run goes on; return how often."""
    plan = [(name, seconds) for name in VICTIMS for seconds in (SHORT, LASTING)] * ROUNDS
    rng.shuffle(plan)
    stops = 0
    for name, seconds in plan:
        if command.poll() is not None:
            break
        if kill_head:
            services.head.kill()
        victims = [process.pid for process in services.named(name)]
        if not (kill_head and name == "head"):
            _still(rng.choice(victims) if victims else command.pid, seconds)
        if kill_head:
            services.head.start()
        stops += 1
        pause(rng.uniform(0.0, 0.1))
    return stops


@pytest.mark.parametrize("kill_head", [False, True], ids=["head left alone", "head killed each time"])
def test_processes_that_stand_still_change_no_result(tmp_path: Path, calm: Calm, kill_head: bool) -> None:
    rng = random.Random(f"{SEED}/{kill_head}")
    site = Site(tmp_path, REPEATS, delay=0.8, replicas=2)
    with own_services(site, lease_seconds=LEASE_SECONDS) as services, site.collecting() as command:
        until(site.written)
        stops = _disturb(services, rng, command, kill_head=kill_head)
        _, said = command.communicate(timeout=RUN_SECONDS)

    assert command.returncode == 0, said
    assert stops >= len(VICTIMS)
    assert check_settled(site, calm(REPEATS)) == 0


def test_attempts_that_time_out_on_a_stopped_service_are_made_again_and_their_late_answers_are_dropped(
    tmp_path: Path, calm: Calm
) -> None:
    rng = random.Random(f"{SEED}/late")
    site = Site(tmp_path, REPEATS, delay=0.3)
    with own_services(site, lease_seconds=LEASE_SECONDS) as services:
        code, said = 3, ""
        for session in range(SESSIONS):
            if code != 3:  # attempts that timed out are for the next session of the run
                break
            with site.collecting("--resume", "--timeout", "1.5") as command:
                written = site.written()
                until(lambda: site.written() > written or command.poll() is not None)  # noqa: B023 (called right here)
                if command.poll() is None and session < 2 * ROUNDS:
                    _still(services.named(rng.choice(VICTIMS[:3]))[0].pid, 2.0)
                _, said = command.communicate(timeout=RUN_SECONDS)
                code = command.returncode

    assert code == 0, said
    assert b'"upstream-timeout"' in site.files.failures.read_bytes() or b'"deadline' in site.files.failures.read_bytes()
    check_settled(site, calm(REPEATS))


def test_a_collector_service_that_stands_still_goes_on_with_its_run(tmp_path: Path, calm: Calm) -> None:
    rng = random.Random(f"{SEED}/service")
    site = Site(tmp_path, REPEATS, delay=0.3, output=tmp_path / "results" / "chaos" / "rollouts.jsonl")
    tasks = [loads(line) for line in TASKS.read_bytes().splitlines()]
    request = RunRequest(id="chaos", rows=tasks, num_repeats=REPEATS, add_seed=True, concurrency=16)
    with own_services(site, lease_seconds=LEASE_SECONDS) as services:
        [collector] = services.named("collector")
        until(lambda: len(services.registered()) == len(services.processes) - 1)
        with CollectorClient(collector.url, token=TOKEN) as client:
            client.start(request)
            for seconds in [SHORT, LASTING] * ROUNDS:
                written = site.written()
                until(lambda: site.written() > written or client.status("chaos").state == "finished")  # noqa: B023
                _still(collector.pid, seconds + rng.uniform(0.0, 0.2))
            rollouts = list(client.rollouts("chaos"))
            assert client.status("chaos").state == "finished"

    assert len(rollouts) == site.rollouts
    assert check_settled(site, calm(REPEATS)) == 0
