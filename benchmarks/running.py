"""Shared by the benchmarks that collect: commands, services as processes of their own, and what they used."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
WEATHER = ROOT / "examples" / "weather.yaml"
WEATHER_TASKS = 10
ROLLMILL = [sys.executable, "-m", "rollmill"]
NO_PORTS = [arg for name in ("head", "collector", "profiler") for arg in (f"--{name}-port", "0")]


@dataclass(frozen=True)
class Collection:
    """One `rollmill collect` to be run."""

    topology: Path
    output: Path
    concurrency: int
    repeats: int = 1
    options: list[str] = field(default_factory=list)

    def command(self) -> list[str]:
        """Return its command line."""
        command = [*ROLLMILL, "collect", "-c", str(self.topology), "--output", str(self.output), "--overwrite"]
        command += ["--no-aggregate", "--num-repeats", str(self.repeats), "--concurrency", str(self.concurrency)]
        return [*command, *self.options]

    def manifest(self) -> Path:
        """Return where its manifest is."""
        return self.output.with_name(f"{self.output.stem}_manifest.json")

    def completed(self) -> int:
        """Return how many rollouts its manifest says are completed; 0 when there is none yet."""
        try:
            return int(json.loads(self.manifest().read_text())["counts"]["completed"])
        except FileNotFoundError:
            return 0

    def run(self, rollouts: int) -> float:
        """Run it in a process of its own and return its CPU seconds.

        Raises:
            SystemExit: it failed, or some of the rollouts did.
        """
        before = os.times()
        finished = subprocess.run(self.command(), check=False, capture_output=True, text=True)
        after = os.times()
        if finished.returncode or self.completed() != rollouts:
            raise SystemExit(f"{self.completed()} of {rollouts} rollouts were completed\n{finished.stderr[-3000:]}")
        return after.children_user + after.children_system - before.children_user - before.children_system


@contextmanager
def services(topology: Path) -> Iterator[dict[str, psutil.Process]]:
    """Start a topology's services and yield their processes by name."""
    subprocess.run([*ROLLMILL, "up", "-c", str(topology), "--detach", *NO_PORTS], check=True, capture_output=True)
    try:
        record = json.loads((Path(os.environ["ROLLMILL_HOME"]) / "services.json").read_text())
        yield {entry["label"]: psutil.Process(entry["pid"]) for entry in record["processes"]}
    finally:
        subprocess.run([*ROLLMILL, "down"], check=True, capture_output=True)


def cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Return the CPU seconds that each process has used."""
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
