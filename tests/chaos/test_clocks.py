"""The wall clock of the machine is set while a run goes on, an hour forward or back."""

import random
from pathlib import Path

import pytest
from tests.chaos.own_services import own_services
from tests.chaos.plans import HERE, LONG, RUN_SECONDS, SEED, Calm, Site, check_settled, pause, until

from rollmill.contracts.json import loads

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

REPEATS = 40 if LONG else 6
JUMPS = 30 if LONG else 6
HOUR = 3600.0


class Clock:
    """The wall clock of the processes of a site."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ahead = 0.0
        self.set(0.0)

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(HERE / "jumping_clock"), "CHAOS_CLOCK": str(self.path)}

    def set(self, ahead: float) -> None:
        """Set it for all processes at once: the file is replaced as a whole."""
        self.ahead = ahead
        new = self.path.with_suffix(".new")
        new.write_text(str(ahead))
        new.replace(self.path)


def test_a_clock_that_jumps_ends_no_lease_no_deadline_and_no_rollout(tmp_path: Path, calm: Calm) -> None:
    rng = random.Random(f"{SEED}/clock")
    clock = Clock(tmp_path / "clock")
    site = Site(tmp_path, REPEATS, delay=0.3, replicas=2, env=clock.env)
    with own_services(site, lease_seconds=2.0), site.collecting("--timeout", "60") as command:
        until(site.written)
        jumps = 0
        while command.poll() is None and jumps < JUMPS:
            clock.set(clock.ahead + rng.choice((-1, 1)) * HOUR)
            jumps += 1
            pause(rng.uniform(0.1, 0.4))
        _, said = command.communicate(timeout=RUN_SECONDS)

    assert command.returncode == 0, said
    assert jumps >= 3
    assert site.files.failures.read_bytes() == b""
    assert check_settled(site, calm(REPEATS)) == 0
    started = [loads(line)["_rollmill"]["started_at"] for line in site.output.read_bytes().splitlines()]
    assert max(started) - min(started) > HOUR / 2, "the clock did not jump"
