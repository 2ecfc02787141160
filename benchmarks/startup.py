"""How long does a user wait before anything happens?

Run:  python benchmarks/startup.py [--runs 5] [--json out.json]

Medians of several runs: importing the library, the help text, the first rollout of an embedded collection on disk,
and head + 3 services ready, with the memory that they hold.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from report import machine, table, write_results

ROOT = Path(__file__).parents[1]
TOPOLOGY = ROOT / "examples" / "weather.yaml"
ROLLMILL = [sys.executable, "-m", "rollmill"]
POLL_SECONDS = 0.002


def timed(command: list[str]) -> float:
    """Return the seconds that a command takes."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def importing() -> float:
    """Return the seconds that `import rollmill` takes in a fresh interpreter."""
    code = "import time; t = time.perf_counter(); import rollmill; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def first_result(folder: Path) -> float:
    """Return the seconds from the command to the first rollout in the file."""
    output = folder / "first.jsonl"
    output.unlink(missing_ok=True)
    command = [*ROLLMILL, "collect", "-c", str(TOPOLOGY), "--embedded", "--output", str(output), "--overwrite"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waiting = True
    while waiting and process.poll() is None:
        waiting = not (output.exists() and output.stat().st_size)
        if waiting:
            time.sleep(POLL_SECONDS)  # noqa: TID251 (a benchmark measures wall time)
    seconds = time.perf_counter() - start
    process.wait()
    return seconds


def services_ready() -> tuple[float, float]:
    """Return the seconds until everything is ready, and the megabytes that head and 3 services hold."""
    ports = [arg for name in ("head", "collector", "profiler") for arg in (f"--{name}-port", "0")]
    seconds = timed([*ROLLMILL, "up", "-c", str(TOPOLOGY), "--detach", *ports])
    record = json.loads((Path(os.environ["ROLLMILL_HOME"]) / "services.json").read_text())
    counted = [e["pid"] for e in record["processes"] if e["kind"] not in ("collector", "profiler")]
    megabytes = sum(psutil.Process(pid).memory_info().rss for pid in counted) / 1e6
    subprocess.run([*ROLLMILL, "down"], check=True, capture_output=True)
    return seconds, megabytes


def median(measure: Callable[[], float], runs: int) -> float:
    """Return the median of several runs, after one that does not count."""
    measure()
    return statistics.median(measure() for _ in range(runs))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["ROLLMILL_HOME"] = str(folder / "home")
        results = {
            "import rollmill": median(importing, arguments.runs),
            "rollmill --help": median(lambda: timed([*ROLLMILL, "--help"]), arguments.runs),
            "collect, embedded: first rollout on disk": median(lambda: first_result(folder), arguments.runs),
        }
        ready = [services_ready() for _ in range(arguments.runs)]
    results["up: head, collector, profiler + 3 services ready"] = statistics.median(seconds for seconds, _ in ready)
    megabytes = statistics.median(size for _, size in ready)
    print(f"medians of {arguments.runs} runs; {machine()}")
    rows = [[what, f"{seconds:.2f} s"] for what, seconds in results.items()]
    print(table(["what", "measured"], [*rows, ["head + 3 services: resident memory", f"{megabytes:.0f} MB"]]))
    write_results(arguments.json, {**results, "megabytes": megabytes})


if __name__ == "__main__":
    main()
