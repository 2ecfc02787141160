"""What does one rollout cost in CPU, over HTTP and embedded?

Run:  python benchmarks/collect.py [--rollouts 4000] [--concurrency 64] [--json out.json]

The job is examples/weather.yaml: seed, two model calls, one tool call, verify. Each mode runs twice, with N and with
3N rollouts, and the difference counts, so that start-up does not. CPU time is that of every process that takes part.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from report import machine, table, write_results

ROOT = Path(__file__).parents[1]
TOPOLOGY = ROOT / "examples" / "weather.yaml"
ROLLMILL = [sys.executable, "-m", "rollmill"]
TASKS = 10  # lines of the example's task file


@dataclass
class Cost:
    """What one mode costs per rollout."""

    mode: str
    cpu_ms: float
    by_process_ms: dict[str, float]


def collect(output: Path, repeats: int, concurrency: int, *options: str) -> float:
    """Run one collection in a process of its own and return its CPU seconds."""
    command = [*ROLLMILL, "collect", "-c", str(TOPOLOGY), "--output", str(output), "--overwrite", "--no-aggregate"]
    command += ["--num-repeats", str(repeats), "--concurrency", str(concurrency), *options]
    before = os.times()
    subprocess.run(command, check=True, capture_output=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    manifest = json.loads(output.with_name(f"{output.stem}_manifest.json").read_text())
    if manifest["counts"]["completed"] != repeats * TASKS:
        raise SystemExit(f"not every rollout was completed: {manifest['counts']}")
    return cpu


@contextmanager
def services() -> Iterator[dict[str, psutil.Process]]:
    """Start the topology's services and yield their processes by name."""
    ports = [arg for name in ("head", "collector", "profiler") for arg in (f"--{name}-port", "0")]
    subprocess.run([*ROLLMILL, "up", "-c", str(TOPOLOGY), "--detach", *ports], check=True, capture_output=True)
    try:
        record = json.loads((Path(os.environ["ROLLMILL_HOME"]) / "services.json").read_text())
        yield {entry["label"]: psutil.Process(entry["pid"]) for entry in record["processes"]}
    finally:
        subprocess.run([*ROLLMILL, "down"], check=True, capture_output=True)


def cpu_seconds(processes: dict[str, psutil.Process]) -> dict[str, float]:
    """Return the CPU seconds that each process has used."""
    return {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}


def over_http(folder: Path, repeats: int, concurrency: int) -> Cost:
    """Measure with every service as a process of its own."""
    with services() as processes:
        collect(folder / "warm.jsonl", 10, concurrency)
        samples = []
        for factor in (1, 3):
            before = cpu_seconds(processes)
            client = {"collector": collect(folder / "http.jsonl", repeats * factor, concurrency)}
            after = cpu_seconds(processes)
            used = {name: after[name] - before[name] for name in processes if name != "collector"}
            samples.append(client | used)
    return difference("HTTP", samples, repeats)


def embedded(folder: Path, repeats: int, concurrency: int) -> Cost:
    """Measure with every service inside the collecting process."""
    samples = [
        {"everything": collect(folder / "embedded.jsonl", repeats * factor, concurrency, "--embedded")}
        for factor in (1, 3)
    ]
    return difference("embedded", samples, repeats)


def difference(mode: str, samples: list[dict[str, float]], repeats: int) -> Cost:
    """Return what the further rollouts of the second sample cost each."""
    rollouts = 2 * repeats * TASKS
    each = {name: (samples[1][name] - samples[0][name]) / rollouts * 1e3 for name in samples[0]}
    each = {name: ms for name, ms in each.items() if ms >= 0.001}
    return Cost(mode, sum(each.values()), each)


def main() -> None:
    """Measure both modes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=4000, help="N, a multiple of 10")
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    repeats = max(1, arguments.rollouts // TASKS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ROLLMILL_HOME"] = str(folder / "home")
        costs = [measure(folder, repeats, arguments.concurrency) for measure in (embedded, over_http)]
    print(f"{arguments.concurrency} rollouts in flight; {machine()}")
    rows = [
        [c.mode, f"{c.cpu_ms:.2f} ms", ", ".join(f"{name} {ms:.2f}" for name, ms in c.by_process_ms.items())]
        for c in costs
    ]
    print(table(["mode", "CPU per rollout", "by process, ms"], rows))
    write_results(arguments.json, [asdict(cost) for cost in costs])


if __name__ == "__main__":
    main()
