"""What does a collection cost: CPU per rollout, rollouts in flight, memory?

Run:  python benchmarks/collect.py [cpu] [delay] [flood] [memory] [--rollouts 4000] [--memory 1000000] [--json out.json]

cpu     CPU per rollout of examples/weather.yaml (seed, two model calls, one tool call, verify), embedded and over HTTP,
        of every process that takes part: what each of the further rollouts costs when N and 3N are collected. "floor"
        is the same six calls between bare ASGI applications (floor.py), measured in turns with it. "rollouts" is the
        rate at which they were collected, which is that of the machine at that moment.
delay   512 rollouts in flight over HTTP, with a model that takes 0.5 s for each of a rollout's two answers.
flood   the same with 16,384 in flight.
memory  resident memory of the collecting process over a long run of a trivial agent, of tasks that are repeated 8
        times, and of tasks that are all different.

Without a name, all of them. CPU time is the least of several rounds; all times are those of this machine as it is.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import costs
import in_flight
import memory
from report import machine, table, write_results

COST_HEADER = ["mode", "CPU per rollout", "median round", "by process, ms", "floor", "x floor", "rollouts", "floor's"]
FLIGHT_HEADER = ["in flight", "rollouts", "most at once", "failed attempts", "steady", "whole run", "ideal"]
FLIGHT_HEADER += ["wall", "x ideal wall", "CPU per rollout"]
REPEATS = 8


def cpu(folder: Path, arguments: argparse.Namespace) -> list[costs.Cost]:
    """Measure both modes and print their table."""
    rollouts = max(10, arguments.rollouts // 10 * 10)
    found = [
        part(folder, rollouts, arguments.concurrency, arguments.rounds) for part in (costs.embedded, costs.over_http)
    ]
    print(f"\n{arguments.concurrency} in flight, {arguments.rounds} rounds\n")
    print(table(COST_HEADER, [costs.row(cost) for cost in found]))
    return found


def delay(folder: Path, arguments: argparse.Namespace) -> list[in_flight.InFlight]:
    """Measure with some hundred rollouts in flight."""
    return _flying(folder, arguments.delay_concurrency, arguments.delay_rollouts)


def flood(folder: Path, arguments: argparse.Namespace) -> list[in_flight.InFlight]:
    """Measure with thousands of rollouts in flight."""
    return _flying(folder, arguments.flood_concurrency, arguments.flood_rollouts)


def _flying(folder: Path, concurrency: int, rollouts: int) -> list[in_flight.InFlight]:
    found = in_flight.measure(folder, concurrency, rollouts // 10 * 10)
    print(f"\nmodel answers take {in_flight.DELAY_SECONDS} s\n")
    print(table(FLIGHT_HEADER, [in_flight.row(found)]))
    return [found]


def memory_held(folder: Path, arguments: argparse.Namespace) -> list[memory.Memory]:
    """Measure repeated and distinct tasks."""
    rollouts = arguments.memory
    shapes = ((max(1, rollouts // REPEATS), REPEATS), (rollouts, 1))
    found = [memory.measure(folder, tasks, repeats, arguments.concurrency) for tasks, repeats in shapes]
    shares = list(dict.fromkeys(share for one in found for share in one.megabytes))
    rows = [
        [f"{one.tasks:,}", f"{one.rollouts:,}", *(_megabytes(one, share) for share in shares), f"{one.cpu_ms:.3f} ms"]
        for one in found
    ]
    print(f"\nmemory of the collecting process, {arguments.concurrency} in flight\n")
    print(table(["tasks", "rollouts", *shares, "CPU per rollout"], rows))
    return found


def _megabytes(found: memory.Memory, share: str) -> str:
    return f"{found.megabytes[share]:.0f} MB" if share in found.megabytes else ""


Part = Callable[[Path, argparse.Namespace], list[costs.Cost] | list[in_flight.InFlight] | list[memory.Memory]]
PARTS: dict[str, Part] = {"cpu": cpu, "delay": delay, "flood": flood, "memory": memory_held}


def main() -> None:
    """Measure the chosen parts and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--rollouts", type=int, default=4000, help="N of the CPU cost, a multiple of 10")
    parser.add_argument("--rounds", type=int, default=3, help="of the CPU cost")
    parser.add_argument("--concurrency", type=int, default=64, help="of the CPU cost and the memory")
    parser.add_argument("--delay-concurrency", type=int, default=512)
    parser.add_argument("--delay-rollouts", type=int, default=10_240)
    parser.add_argument("--flood-concurrency", type=int, default=16_384)
    parser.add_argument("--flood-rollouts", type=int, default=40_960)
    parser.add_argument("--memory", type=int, default=100_000, help="rollouts of the memory's run")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    print(machine())
    results = {}
    with tempfile.TemporaryDirectory(prefix="rollmill-benchmark-") as name:
        os.environ["ROLLMILL_HOME"] = str(Path(name) / "home")
        for part in arguments.parts or PARTS:
            results[part] = [asdict(found) for found in PARTS[part](Path(name), arguments)]
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
