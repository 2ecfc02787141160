"""The part of collect.py that asks what one rollout costs in CPU, and what the floor is."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from floor import bare_services, embedded_seconds, http_seconds
from running import WEATHER, WEATHER_TASKS, Collection, cpu_seconds, services

Sample = dict[str, float]
"""CPU seconds of one collection, by process."""
Measure = Callable[[int], Sample]
"""Rollouts to the CPU seconds that they took."""


@dataclass
class Cost:
    """What one mode costs per rollout."""

    mode: str
    cpu_ms: float
    """The least of the rounds."""
    by_process_ms: dict[str, float]
    """Of that round."""
    rounds_ms: list[float]
    floor_ms: float
    """The least of the same rounds of the bare applications."""
    rate: float
    """Rollouts per second, the most of the rounds."""
    floor_rate: float
    """The same of the bare applications."""


def embedded(folder: Path, rollouts: int, concurrency: int, rounds: int) -> Cost:
    """Measure with every service inside the collecting process."""
    output = folder / "embedded.jsonl"

    def own(count: int) -> Sample:
        collection = Collection(WEATHER, output, concurrency, count // WEATHER_TASKS, ["--embedded"])
        return {"everything": collection.run(count)}

    return _cost("embedded", own, lambda count: embedded_seconds(count, concurrency), rollouts, rounds)


def over_http(folder: Path, rollouts: int, concurrency: int, rounds: int) -> Cost:
    """Measure with every service as a process of its own."""
    output = folder / "http.jsonl"
    with services(WEATHER) as processes, bare_services() as bare:

        def own(count: int) -> Sample:
            before = cpu_seconds(processes)
            client = {"collector": Collection(WEATHER, output, concurrency, count // WEATHER_TASKS).run(count)}
            after = cpu_seconds(processes)
            return client | {name: after[name] - before[name] for name in processes if name != "collector"}

        def floor(count: int) -> Sample:
            return http_seconds(bare, count, concurrency)

        warm_up = 10 * WEATHER_TASKS
        own(warm_up), floor(warm_up)
        return _cost("HTTP", own, floor, rollouts, rounds)


def _cost(mode: str, own: Measure, floor: Measure, rollouts: int, rounds: int) -> Cost:
    """Take both in turns, so that what else the machine does meets both."""
    costs, floors, rates, floor_rates = [], [], [], []
    for _ in range(rounds):
        cost, rate = _marginal(own, rollouts)
        floor_cost, floor_rate = _marginal(floor, rollouts)
        costs.append(cost)
        floors.append(sum(floor_cost.values()))
        rates.append(rate)
        floor_rates.append(floor_rate)
    best = min(costs, key=lambda cost: sum(cost.values()))
    totals = [sum(cost.values()) for cost in costs]
    by_process = {name: ms for name, ms in best.items() if ms >= 0.001}
    return Cost(mode, min(totals), by_process, totals, min(floors), max(rates), max(floor_rates))


def _marginal(measure: Measure, rollouts: int) -> tuple[Sample, float]:
    """Return the CPU milliseconds of each rollout that the second of two collections has more, and their rate."""
    start = time.perf_counter()
    first = measure(rollouts)
    between = time.perf_counter()
    second = measure(3 * rollouts)
    seconds = (time.perf_counter() - between) - (between - start)
    return {name: (second[name] - first[name]) / (2 * rollouts) * 1e3 for name in first}, 2 * rollouts / seconds


def row(cost: Cost) -> list[str]:
    """Render a row of the table: mode, least, median, split by process, floor, ratio, rates."""
    return [
        cost.mode,
        f"{cost.cpu_ms:.2f} ms",
        f"{statistics.median(cost.rounds_ms):.2f} ms",
        ", ".join(f"{name} {ms:.2f}" for name, ms in cost.by_process_ms.items()),
        f"{cost.floor_ms:.2f} ms",
        f"{cost.cpu_ms / cost.floor_ms:.1f}",
        f"{cost.rate:.0f}/s",
        f"{cost.floor_rate:.0f}/s",
    ]
