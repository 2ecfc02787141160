"""The part of collect.py that asks what many rollouts in flight come to when the model takes its time."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import msgspec

from running import WEATHER, WEATHER_TASKS, Collection, cpu_seconds, services

DELAY_SECONDS = 0.5
MODEL_CALLS = 2
"""Of one rollout of the weather example."""
CPUS = 2
ROUNDING_SECONDS = 0.001
"""Rollouts note their start to the millisecond."""


class _Timing(msgspec.Struct):
    seconds: float
    started_at: float


class _Line(msgspec.Struct):
    timing: _Timing = msgspec.field(name="_rollmill")


@dataclass
class InFlight:
    """What a collection with a slow model did."""

    concurrency: int
    rollouts: int
    seconds: float
    """From the first rollout's start to the last one's end."""
    rate: float
    """Rollouts per second over all of that: the start, in which there are fewer in flight, and the end too."""
    steady_rate: float | None
    """Rollouts per second between the moment that all of them were in flight and the last start; None if none was."""
    ideal_rate: float
    """Rollouts per second that the delay allows."""
    most_in_flight: int
    failed_attempts: dict[str, int]
    """By boundary and type; all were made again, and none of the rollouts failed for good."""
    cpu_ms: float
    """CPU per rollout, all processes."""

    @property
    def ideal_seconds(self) -> float:
        """The delay's time, or that of so much CPU on all cores, whichever is longer, and one rollout's delay."""
        work = max(self.rollouts / self.ideal_rate, self.rollouts * self.cpu_ms / 1e3 / CPUS)
        return work + MODEL_CALLS * DELAY_SECONDS


def measure(folder: Path, concurrency: int, rollouts: int) -> InFlight:
    """Collect over HTTP from a model that takes half a second for each answer."""
    output = folder / "in_flight.jsonl"
    with services(_topology(folder)) as processes:
        Collection(folder / "slow.yaml", output, WEATHER_TASKS).run(WEATHER_TASKS)
        before = cpu_seconds(processes)
        client = Collection(folder / "slow.yaml", output, concurrency, rollouts // WEATHER_TASKS).run(rollouts)
        after = cpu_seconds(processes)
    cpu = client + sum(after[name] - before[name] for name in after)
    timings = [msgspec.json.decode(line, type=_Line).timing for line in output.open("rb")]
    starts = sorted(timing.started_at for timing in timings)
    ends = sorted(timing.started_at + timing.seconds for timing in timings)
    seconds = ends[-1] - starts[0]
    full, most = _filled(starts, ends, concurrency)
    return InFlight(
        concurrency=concurrency,
        rollouts=rollouts,
        seconds=seconds,
        rate=rollouts / seconds,
        steady_rate=_rate(ends, full, starts[-1]),
        ideal_rate=concurrency / (MODEL_CALLS * DELAY_SECONDS),
        most_in_flight=most,
        failed_attempts=_failures(output.with_name(f"{output.stem}_failures.jsonl")),
        cpu_ms=cpu / rollouts * 1e3,
    )


def _failures(path: Path) -> dict[str, int]:
    failures = [json.loads(line)["failure"] for line in path.open("rb")]
    return dict(Counter(f"{failure['boundary']}/{failure['type']}" for failure in failures))


def _filled(starts: list[float], ends: list[float], concurrency: int) -> tuple[float | None, int]:
    """Return when so many, or nearly, were first in flight at once, and the most there were."""
    full, most, ended = None, 0, 0
    for started, moment in enumerate(starts, start=1):
        while ends[ended] <= moment + ROUNDING_SECONDS:
            ended += 1
        most = max(most, started - ended)
        if full is None and most >= 0.98 * concurrency:
            full = moment
    return full, most


def _rate(ends: list[float], start: float | None, stop: float) -> float | None:
    """Rollouts that ended per second between two moments."""
    if start is None or stop - start < MODEL_CALLS * DELAY_SECONDS:
        return None
    return sum(start < end <= stop for end in ends) / (stop - start)


def _topology(folder: Path) -> Path:
    path = folder / "slow.yaml"
    text = WEATHER.read_text().replace(
        "use: scripted}", f"use: scripted, settings: {{delay_seconds: {DELAY_SECONDS}}}}}"
    )
    path.write_text(text.replace("data/weather", str(WEATHER.parent / "data" / "weather")))
    return path


def row(found: InFlight) -> list[str]:
    """Render a row of the table."""
    steady = f"{found.steady_rate:.0f}/s" if found.steady_rate is not None else "too short"
    return [
        f"{found.concurrency:,}",
        f"{found.rollouts:,}",
        f"{found.most_in_flight:,}",
        ", ".join(f"{kind} {count}" for kind, count in found.failed_attempts.items()) or "none",
        steady,
        f"{found.rate:.0f}/s",
        f"{found.ideal_rate:,.0f}/s",
        f"{found.seconds:.1f} s",
        f"{found.seconds / found.ideal_seconds:.2f}",
        f"{found.cpu_ms:.2f} ms",
    ]
