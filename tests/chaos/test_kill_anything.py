"""Kills processes at random moments of a real run and checks that every rollout is settled exactly once.

A plan is drawn from a seed, so a failure can be run again: `make chaos SEED=7`. The short plan is part of the tests; the
long one is `make chaos`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollmill import CollectorClient, RunRequest, RunStatus
from rollmill.contracts.json import loads
from rollmill.errors import ConnectError, RunNotFoundError, UpstreamError
from rollmill.local.state import ProcessRecord, StateDir

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
ROLLMILL = [sys.executable, "-m", "rollmill"]
TOPOLOGY = f"""
services:
  policy:
    kind: model
    use: scripted
    replicas: 2
    settings: {{answers: ["{ROOT}/examples/data/mcqa.jsonl"], skill: 0.6, delay_seconds: 0.05}}
  mcqa: {{kind: resources, use: mcqa, replicas: 2}}
  mcqa_agent: {{kind: agent, use: single_turn, replicas: 2, settings: {{model: policy, resources: mcqa}}}}
"""
TASKS = ROOT / "examples" / "data" / "mcqa.jsonl"
SEED = int(os.environ.get("CHAOS_SEED", "1"))
LONG = os.environ.get("CHAOS", "") == "long"
REPEATS, KILLS, PAUSE_SECONDS = (84, 100, (0.2, 1.2)) if LONG else (12, 8, (0.1, 0.5))
RUN_SECONDS = 900.0 if LONG else 90.0


@dataclass
class Deployment:
    """Services under `rollmill up`, which starts again whatever is killed, and the collecting command beside them."""

    folder: Path
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def topology(self) -> Path:
        return self.folder / "topology.yaml"

    @property
    def output(self) -> Path:
        return self.folder / "run.jsonl"

    def environ(self) -> dict[str, str]:
        return {**os.environ, "ROLLMILL_HOME": str(self.folder / "home")}

    def command(self, *extra: str) -> list[str]:
        common = ["--input", str(TASKS), "--num-repeats", str(REPEATS), "--add-seed", "--max-attempts", "100"]
        return [*ROLLMILL, "collect", "-c", str(self.topology), *common, "--concurrency", "16", *extra]

    def services(self) -> list[ProcessRecord]:
        record = StateDir(self.folder / "home").load()
        return [] if record is None else [process for process in record.processes if process.ref.is_running()]

    def kill_a_service(self, rng: random.Random) -> None:
        """Kill -9 one service of the topology, or the head."""
        names = ("head", "policy", "mcqa", "mcqa_agent")
        candidates = [process for process in self.services() if process.name in names]
        if candidates:
            victim = rng.choice(sorted(candidates, key=lambda process: process.label))
            os.kill(victim.pid, signal.SIGKILL)
            self.kills[victim.name] += 1


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path)
    deployment.topology.write_text(TOPOLOGY)
    ports = [part for name in ("head", "collector", "profiler") for part in (f"--{name}-port", "0")]
    log = (tmp_path / "up.log").open("wb")
    command = [*ROLLMILL, "up", "-c", str(deployment.topology), *ports, "--restarts", "1000"]
    command += ["--data-dir", str(tmp_path / "results")]
    up = subprocess.Popen(command, env=deployment.environ(), stdout=log, stderr=log)
    try:
        _until(lambda: len(deployment.services()) == 9 and "ready in" in (tmp_path / "up.log").read_text(), 60)
        yield deployment
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(timeout=60)
        log.close()


def _until(condition: object, seconds: float) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        _pause(0.05)


def _pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 (the plan is made of moments)


@contextmanager
def _collecting(deployment: Deployment, *extra: str) -> Iterator[subprocess.Popen[bytes]]:
    with (deployment.folder / "collect.log").open("ab") as log:
        process = subprocess.Popen(
            deployment.command("--output", str(deployment.output), *extra),
            env=deployment.environ(),
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _run_under_fire(deployment: Deployment, rng: random.Random) -> None:
    """Collect, killing services and the collector itself, and go on with --resume until the run is done."""
    deadline = time.monotonic() + RUN_SECONDS
    kills = KILLS
    code: int | None = None
    while code != 0:
        assert time.monotonic() < deadline, "the run did not end"
        with _collecting(deployment, "--resume") as process:
            while (code := process.poll()) is None and time.monotonic() < deadline:
                _pause(rng.uniform(*PAUSE_SECONDS))
                if kills and rng.random() < 0.25:
                    process.kill()
                    deployment.kills["the collecting command"] += 1
                    kills -= 1
                elif kills:
                    deployment.kill_a_service(rng)
                    kills -= 1
            code = process.wait()
        assert code in (0, 1, -signal.SIGKILL), "rollouts were given up on"


def rewards(path: Path) -> dict[tuple[int, int], float]:
    rows = [loads(line) for line in path.read_bytes().splitlines()]
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows]
    assert len(keys) == len(set(keys)), "a rollout was settled twice"
    return {key: row["reward"] for key, row in zip(keys, rows, strict=True)}


@pytest.mark.timeout(RUN_SECONDS + 120)
def test_every_rollout_is_settled_once_and_as_in_a_run_without_kills(deployment: Deployment) -> None:
    calm = deployment.folder / "calm.jsonl"
    subprocess.run(
        deployment.command("--output", str(calm), "--embedded"),
        env=deployment.environ(),
        check=True,
        capture_output=True,
    )
    _run_under_fire(deployment, random.Random(SEED))

    assert rewards(deployment.output) == rewards(calm)
    inputs = deployment.output.with_name("run_materialized_inputs.jsonl").read_bytes().splitlines()
    assert len(inputs) == len(rewards(calm)) == 24 * REPEATS
    manifest = json.loads(deployment.output.with_name("run_manifest.json").read_text())
    assert (manifest["state"], manifest["counts"]["completed"]) == ("finished", 24 * REPEATS)
    assert sum(deployment.kills.values()) > 0


def _status(client: CollectorClient) -> RunStatus | None:
    try:
        return client.status("chaos")
    except (ConnectError, UpstreamError, RunNotFoundError):
        return None  # it is being started again


@pytest.mark.timeout(RUN_SECONDS + 120)
def test_a_collector_service_that_is_killed_goes_on_with_its_run_by_itself(deployment: Deployment) -> None:
    calm = deployment.folder / "calm.jsonl"
    subprocess.run(
        deployment.command("--output", str(calm), "--embedded"),
        env=deployment.environ(),
        check=True,
        capture_output=True,
    )
    rng = random.Random(SEED)
    [collector] = [process for process in deployment.services() if process.name == "collector"]
    tasks = [loads(line) for line in TASKS.read_bytes().splitlines()]
    request = RunRequest(id="chaos", rows=tasks, num_repeats=REPEATS, add_seed=True, concurrency=16, max_attempts=100)
    with CollectorClient(collector.url, token=StateDir(deployment.folder / "home").token()) as client:
        client.start(request)
        kills, deadline = max(2, KILLS // 8), time.monotonic() + RUN_SECONDS
        while (status := _status(client)) is None or status.state != "finished":
            assert time.monotonic() < deadline, status
            if kills and status is not None and status.state == "running" and status.completed:
                [record] = [process for process in deployment.services() if process.name == "collector"]
                os.kill(record.pid, signal.SIGKILL)
                kills -= 1
            _pause(rng.uniform(*PAUSE_SECONDS))
        rows = list(client.rollouts("chaos"))

    assert len(rows) == status.completed == 24 * REPEATS
    assert rewards(deployment.folder / "results" / "chaos" / "rollouts.jsonl") == rewards(calm)
