"""What does it cost to append a line to a run's file: written at once, synced every 50 ms?

Run:  python benchmarks/append.py [--lines 50000] [--rounds 3] [--json out.json]

Appends lines of 4 KB, ten in each turn of the event loop, as a collector does under load, and prints the least CPU time
per line over the rounds, all threads together. "write alone" is the same bytes through a buffered file without a sync.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import uvloop

from report import machine, table, write_results
from rollmill.artifacts.writer import JsonlWriter

LINE = b"x" * 4095
LINES_PER_TURN = 10


async def appended(path: Path, lines: int) -> None:
    """Append lines as a collector does."""
    async with JsonlWriter(path) as writer:
        for number in range(lines):
            await writer.append(LINE)
            if number % LINES_PER_TURN == 0:
                await asyncio.sleep(0)


def written(path: Path, lines: int) -> None:
    """Write lines to a buffered file, which is flushed as often as the other one is written."""
    with path.open("wb") as file:
        for number in range(lines):
            file.write(LINE + b"\n")
            if number % LINES_PER_TURN == 0:
                file.flush()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    best = {"append": float("inf"), "write alone": float("inf")}
    with tempfile.TemporaryDirectory(prefix="rollmill-benchmark-") as folder:
        for number in range(arguments.rounds):
            start = time.process_time()
            uvloop.run(appended(Path(folder) / f"a{number}.jsonl", arguments.lines))
            between = time.process_time()
            written(Path(folder) / f"w{number}.jsonl", arguments.lines)
            seconds = {"append": between - start, "write alone": time.process_time() - between}
            best = {name: min(best[name], spent / arguments.lines * 1e6) for name, spent in seconds.items()}
    print(machine())
    print(table(["", "CPU per line of 4 KB"], [[name, f"{micro:.1f} us"] for name, micro in best.items()]))
    write_results(arguments.json, best)


if __name__ == "__main__":
    main()
