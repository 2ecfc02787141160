"""The disk is full amid a run: it stops with that message, nothing is torn, and `--resume` goes on once there is space."""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.chaos.plans import LONG, RUN_SECONDS, SEED, TASKS, Calm, Site, check_settled, until

from rollmill import CollectorClient, RunRequest
from rollmill.contracts.json import loads

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

STOPS = 8 if LONG else 2
REPEATS = 8
FULL = "No space left on device"


@contextmanager
def _volume(folder: Path) -> Iterator[Path]:
    """Mount a small volume; skip where nobody may."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "chaos", str(folder)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a full disk needs the right to mount a small volume: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _resize(volume: Path, kib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kib}k", str(volume)], check=True)


def _check_whole(site: Site) -> None:
    """Every line of every file is one, and the manifest is whole."""
    for path in (site.files.rollouts, site.files.inputs, site.files.failures):
        data = path.read_bytes() if path.exists() else b""
        assert data.endswith(b"\n") or not data
        for line in data.splitlines():
            assert isinstance(loads(line), dict)
    if site.files.manifest.exists():
        assert isinstance(loads(site.files.manifest.read_bytes()), dict)


def test_a_run_whose_disk_is_full_stops_and_a_resume_completes_it(tmp_path: Path, calm: Calm) -> None:
    rng = random.Random(SEED)
    with _volume(tmp_path / "volume") as volume:
        site = Site(tmp_path, REPEATS, delay=0.01, output=volume / "run.jsonl")
        size = 64
        for _ in range(STOPS):
            full = site.collect("--resume")
            assert full.returncode == 1, full.stderr
            assert FULL in full.stderr
            _check_whole(site)
            size += rng.randrange(8, 24 if LONG else 64)
            _resize(volume, size)
        _resize(volume, 65_536)
        done = site.collect("--resume")

        assert done.returncode == 0, done.stderr
        check_settled(site, calm(REPEATS))


def test_the_collector_service_says_so_too_and_goes_on_when_it_is_asked(tmp_path: Path, calm: Calm) -> None:
    tasks = [loads(line) for line in TASKS.read_bytes().splitlines()]
    request = RunRequest(id="chaos", rows=tasks, num_repeats=REPEATS, add_seed=True, concurrency=16)
    (tmp_path / "results").mkdir()
    with _volume(tmp_path / "results" / "chaos") as volume:
        _resize(volume, 192)
        site = Site(tmp_path, REPEATS, delay=0.01, output=volume / "rollouts.jsonl")
        with site.up():
            [collector] = [process for process in site.services() if process.name == "collector"]
            with CollectorClient(collector.url, token=site.state.token()) as client:
                client.start(request)
                until(lambda: client.status("chaos").state != "running")
                stopped = client.status("chaos")
                assert (stopped.state, FULL in stopped.error) == ("failed", True)
                _check_whole(site)
                _resize(volume, 65_536)
                client.resume("chaos")
                until(lambda: client.status("chaos").state != "running")
                assert client.status("chaos").state == "finished"
        check_settled(site, calm(REPEATS))
