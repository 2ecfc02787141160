"""Two collecting commands start on one output at once: one of them gets it, the other one is told so."""

import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.chaos.plans import LONG, RUN_SECONDS, SEED, Calm, Site, check_settled, pause

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

ROUNDS = 6 if LONG else 1
REPEATS = 4
SLOWLY = 1.0
"""Seconds that the model takes: the second command comes while the first is at work, however slow its start was."""


def _race(site: Site, rng: random.Random, *flags: str) -> list[tuple[int, str]]:
    """Start two commands a moment apart; return how they ended, the winner first."""
    with ExitStack() as stack:
        first = stack.enter_context(site.collecting(*flags, embedded=True))
        pause(rng.uniform(0.0, 0.1))
        second = stack.enter_context(site.collecting(*flags, embedded=True))
        ends = [(process.communicate(timeout=RUN_SECONDS)[1], process.returncode) for process in (first, second)]
    return sorted((code, said) for said, code in ends)


@pytest.mark.parametrize("flags", [(), ("--resume",), ("--overwrite",)], ids=["fresh", "resume", "overwrite"])
def test_exactly_one_of_two_collectors_gets_the_output(tmp_path: Path, calm: Calm, flags: tuple[str, ...]) -> None:
    rng = random.Random(f"{SEED}/{flags}")
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        site = Site(folder, REPEATS, delay=SLOWLY)
        if "--overwrite" in flags:
            assert site.collect("--limit", "2").returncode == 0
            site.executions.unlink()
        (won, _), (lost, told) = _race(site, rng, *flags)

        assert (won, lost) == (0, 1), told
        assert "is writing this file" in told or "exists" in told
        assert check_settled(site, calm(REPEATS)) == 0


def test_a_collector_takes_over_what_a_killed_one_left_whoever_else_tries(tmp_path: Path, calm: Calm) -> None:
    rng = random.Random(f"{SEED}/killed")
    site = Site(tmp_path, REPEATS, delay=0.25)
    for _ in range(ROUNDS):
        with site.collecting("--resume", embedded=True) as process:
            written = site.written()
            while process.poll() is None and site.written() == written:
                pause(0.02)
            process.send_signal(signal.SIGKILL)
    ends = _race(site, rng, "--resume")

    assert sorted(code for code, _ in ends)[0] == 0, ends
    check_settled(site, calm(REPEATS))
