"""The files of a run end anywhere, as after a power failure; `--resume` makes them whole."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import parquet
from tests.chaos.plans import LONG, RUN_SECONDS, SEED, Calm, Site, check_settled, until

from rollmill.artifacts.reader import read_rollouts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(RUN_SECONDS + 120)]

CUTS = 15 if LONG else 2
REPEATS = 4


def _torn(path: Path, rng: random.Random) -> None:
    """Cut a file somewhere in its second half; now and then a block of zeros follows, as file systems leave them."""
    data = path.read_bytes()
    kept = data[: rng.randrange(len(data) // 2, len(data) + 1)]
    path.write_bytes(kept + rng.choice((b"", b"\0" * 512)))


def _interrupted(site: Site, written: int) -> None:
    """Leave a run that was killed after so many rollouts."""
    with site.collecting("--resume", embedded=True) as process:
        until(lambda: site.written() >= written or process.poll() is not None)
        process.send_signal(signal.SIGKILL)


def _failure_lines(site: Site, rng: random.Random) -> None:
    """Failed attempts of earlier days, which leave the rollouts with attempts enough."""
    rows = list(read_rollouts(site.files.inputs))  # its whole lines: it may be torn already
    failure = {"boundary": "model", "type": "overloaded", "detail": "busy", "retryable": True}
    marks = {"_ng_attempt_index": 0, "_ng_failure_class": "overloaded", "_ng_failure_terminal": False}
    keys = ("_ng_task_index", "_ng_rollout_index", "agent_ref")
    lines = [
        {**{key: row[key] for key in keys}, **marks, "failure": failure} for row in rng.sample(rows, min(20, len(rows)))
    ]
    site.files.failures.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _rollouts(site: Site, rng: random.Random) -> None:
    _torn(site.files.rollouts, rng)


def _failures(site: Site, rng: random.Random) -> None:
    _failure_lines(site, rng)
    _torn(site.files.failures, rng)


def _inputs(site: Site, rng: random.Random) -> None:
    _torn(site.files.inputs, rng)


def _sidecar(site: Site, rng: random.Random) -> None:
    whole = site.files.metrics_parquet
    if not whole.exists():  # only a finished or a large run has one
        whole.write_bytes(b"PAR1" + rng.randbytes(5000))
    _torn(whole, rng)


def _half_written_manifest(site: Site, rng: random.Random) -> None:
    """What a process leaves that is killed while it writes the manifest: the old one, and part of a new one beside it."""
    manifest = site.files.manifest
    data = manifest.read_bytes()
    manifest.with_name(f".{manifest.name}.1.1.tmp").write_bytes(data[: rng.randrange(len(data))])


TEARS: list[Callable[[Site, random.Random], None]] = [_rollouts, _failures, _inputs, _sidecar, _half_written_manifest]


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "killed"])
def test_a_run_whose_files_are_torn_is_completed(tmp_path: Path, calm: Calm, finished: bool) -> None:
    rng = random.Random(f"{SEED}/{finished}")
    site = Site(tmp_path, REPEATS, delay=0.0 if finished else 0.05)
    _interrupted(site, site.rollouts // 3)
    for number in range(CUTS):
        if finished:
            assert site.collect("--resume").returncode == 0
        else:
            _interrupted(site, site.written() + 5)
        for tear in [TEARS[number % len(TEARS)], *rng.sample(TEARS, 2)]:
            tear(site, rng)
    done = site.collect("--resume")

    assert done.returncode == 0, done.stderr
    check_settled(site, calm(REPEATS))
    assert parquet.read_metadata(site.files.metrics_parquet).num_rows == site.rollouts


def test_a_torn_manifest_is_never_taken_for_one_and_nothing_is_changed(tmp_path: Path) -> None:
    """Rollmill replaces its manifest as a whole; another program, or a broken disk, may still have cut it."""
    rng = random.Random(SEED)
    site = Site(tmp_path, 1)
    _interrupted(site, 5)
    data = site.files.manifest.read_bytes()
    site.files.manifest.write_bytes(data[: rng.randrange(len(data) - 2)])
    before = {path: path.read_bytes() for path in site.files.all() if path.exists()}
    refused = site.collect("--resume")

    assert refused.returncode == 1
    assert "not a manifest" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert {path: path.read_bytes() for path in site.files.all() if path.exists()} == before
    assert site.collect("--overwrite").returncode == 0
