"""What the plans share: a place for a run and its services, the undisturbed run, and the check at the end of each plan."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.reader import read_jsonl
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import RowKey, row_key
from rollmill.local.state import ProcessRecord, StateDir

HERE = Path(__file__).parent
TASKS = HERE.parents[1] / "examples" / "data" / "mcqa.jsonl"
TASK_COUNT = 24
ROLLMILL = [sys.executable, "-m", "rollmill"]
SEED = int(os.environ.get("CHAOS_SEED", "1"))
LONG = os.environ.get("CHAOS", "") == "long"
RUN_SECONDS = 900.0 if LONG else 90.0
"""A plan that takes longer has failed."""
TOPOLOGY = """
services:
  policy:
    kind: model
    use: scripted
    replicas: {replicas}
    settings: {{answers: ["{tasks}"], skill: 0.6, delay_seconds: {delay}}}
  mcqa: {{kind: resources, use: "counted:Counted", replicas: {replicas}, settings: {{executions: "{executions}"}}}}
  mcqa_agent: {{kind: agent, use: single_turn, replicas: {replicas}, settings: {{model: policy, resources: mcqa}}}}
"""


def pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 (the plans are made of moments)


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain"
        pause(0.02)


@dataclass
class Site:
    """A folder with a topology, a run, and what was said on the way.

    Args:
        folder: for everything but the run.
        repeats: rollouts for each of the 24 tasks.
        delay: seconds that the model takes.
        replicas: of each service.
        env: further variables of every process.
        output: where the run goes; in the folder unless it is said.
        head: URL of the head that the collecting command asks, instead of those of the topology.
    """

    folder: Path
    repeats: int
    delay: float = 0.05
    replicas: int = 1
    env: dict[str, str] = field(default_factory=dict)
    output: Path = Path()
    head: str = ""
    options: tuple[str, ...] = ("--concurrency", "16", "--max-attempts", "100")

    def __post_init__(self) -> None:
        if self.output == Path():
            self.output = self.folder / "run.jsonl"
        settings = {"replicas": self.replicas, "delay": self.delay, "tasks": TASKS, "executions": self.executions}
        self.topology.write_text(TOPOLOGY.format(**settings))

    @property
    def topology(self) -> Path:
        return self.folder / "topology.yaml"

    @property
    def executions(self) -> Path:
        return self.folder / "executions.jsonl"

    @property
    def files(self) -> RunFiles:
        return RunFiles.at(self.output)

    @property
    def state(self) -> StateDir:
        return StateDir(self.folder / "home")

    @property
    def rollouts(self) -> int:
        return TASK_COUNT * self.repeats

    def environ(self) -> dict[str, str]:
        return {**os.environ, "ROLLMILL_HOME": str(self.state.path), **self.env}

    def command(self, *extra: str) -> list[str]:
        wanted = ["--input", str(TASKS), "--num-repeats", str(self.repeats), "--add-seed", "--output", str(self.output)]
        return [*ROLLMILL, "collect", *wanted, *self.options, *extra]

    def collect(self, *extra: str, embedded: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run the collecting command to its end."""
        with self.collecting(*extra, embedded=embedded) as process:
            said, errors = process.communicate(timeout=RUN_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, said, errors)

    @contextmanager
    def collecting(self, *extra: str, embedded: bool = False) -> Iterator["subprocess.Popen[str]"]:
        """Start the collecting command, and kill it at the end if it still runs."""
        where = (
            ["--head", self.head] if self.head else ["-c", str(self.topology), *(["--embedded"] if embedded else [])]
        )
        process = subprocess.Popen(
            self.command(*where, *extra),
            env=self.environ(),
            cwd=HERE,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def services(self) -> list[ProcessRecord]:
        """The live processes of `rollmill up`."""
        record = self.state.load()
        return [] if record is None else [process for process in record.processes if process.ref.is_running()]

    def written(self) -> int:
        """Count the lines of the rollouts file."""
        return self.output.read_bytes().count(b"\n") if self.output.exists() else 0

    @contextmanager
    def up(self, *extra: str) -> Iterator[None]:
        """Keep the services under `rollmill up`, which starts again whatever dies."""
        log = self.folder / "up.log"
        ports = [part for name in ("head", "collector", "profiler") for part in (f"--{name}-port", "0")]
        command = [*ROLLMILL, "up", "-c", str(self.topology), *ports, "--restarts", "1000", *extra]
        command += ["--data-dir", str(self.folder / "results")]
        with log.open("wb") as file:
            up = subprocess.Popen(command, env=self.environ(), cwd=HERE, stdout=file, stderr=file)
        try:
            until(lambda: "ready in" in log.read_text() or up.poll() is not None)
            assert up.poll() is None, log.read_text()
            yield
        finally:
            up.terminate()
            up.wait(timeout=90)


Calm = Callable[[int], RunFiles]
"""Gives the files of the run that nothing disturbs, by its number of repeats."""


def check_settled(site: Site, calm: RunFiles, output: Path | None = None) -> int:
    """Check what every plan promises: each materialized key is settled exactly once, by exactly one execution of its
    verifier, that of the attempt that was written; and the run is the undisturbed one.

    Returns:
        How many executions of the verifier had no effect.
    """
    files = RunFiles.at(output or site.output)
    settled = list(read_jsonl(files.rollouts))
    keys = [row_key(row) for row in settled]
    materialized = [row_key(row) for row in read_jsonl(files.inputs)]

    assert len(keys) == len(set(keys)), "a rollout was settled twice"
    assert len(materialized) == len(set(materialized)) == site.rollouts
    assert set(keys) == set(materialized), "a materialized row was not settled"
    executions = {execution["verdict"]: execution for execution in read_jsonl(site.executions)}
    marks = [row["verdict_id"] for row in settled]
    assert len(marks) == len(set(marks)), "one execution of the verifier settled two rollouts"
    assert [_attempt(executions[mark]) for mark in marks] == [_settled_by(row) for row in settled]
    assert _rewards(settled) == _rewards(list(read_jsonl(calm.rollouts)))
    assert flat(json.loads(files.aggregate_metrics.read_text())) == pytest.approx(
        flat(json.loads(calm.aggregate_metrics.read_text()))
    )
    manifest = json.loads(files.manifest.read_text())
    assert manifest["state"] == "finished"
    assert manifest["counts"] == {"expected": site.rollouts, "completed": site.rollouts, "failed": 0}
    return len(executions) - len(settled)


def flat(value: JsonValue, path: str = "") -> dict[str, JsonValue]:
    """Flatten JSON to its leaves by their paths."""
    if isinstance(value, dict):
        return {name: leaf for key, item in value.items() for name, leaf in flat(item, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {
            name: leaf for number, item in enumerate(value) for name, leaf in flat(item, f"{path}/{number}").items()
        }
    return {path: value}


def _attempt(execution: Mapping[str, JsonValue]) -> tuple[int, int, int]:
    return execution["task"], execution["rollout"], execution["attempt"]


def _settled_by(row: JsonObject) -> tuple[int, int, int]:
    key = row_key(row)
    return key.task, key.rollout, row[rows.TIMING]["attempt"]


def _rewards(settled: list[JsonObject]) -> dict[RowKey, float]:
    return {row_key(row): row[rows.REWARD] for row in settled}
