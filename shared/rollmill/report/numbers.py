"""How numbers are written for people. Reports and the terminal write them the same way."""

import math
from typing import Final, TypeGuard

from rollmill.contracts.json import JsonObject, JsonValue

NOTHING: Final = "–"
"""Stands for what is undefined."""
_UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def is_finite(value: JsonValue) -> TypeGuard[float]:
    """Say whether a value is a number that can be shown; booleans are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number(value: JsonValue, digits: int = 3) -> str:
    """Write a statistic: up to 1 with a fixed number of decimals, larger ones with as many digits as matter."""
    if not is_finite(value):
        return NOTHING
    if value == 0 or 10.0**-digits <= abs(value) < 10:
        return f"{value:.{digits}f}"
    if 10 <= abs(value) < 100_000:
        return f"{value:,.1f}" if abs(value) < 1000 and value != int(value) else f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: JsonValue) -> str:
    """Write a share in 0 to 1 as a percentage; neither 0 % nor 100 % when it is only near to it."""
    if not is_finite(value):
        return NOTHING
    shown = f"{100 * value:.1f}"
    if shown == "100.0" and value < 1:
        return ">99.9 %"
    if shown == "0.0" and value > 0:
        return "<0.1 %"
    return f"{shown} %"


def count(value: JsonValue) -> str:
    """Write a whole number with separators."""
    return f"{value:,.0f}" if is_finite(value) else NOTHING


def compact(value: float) -> str:
    """Write a number in few characters, for an axis: 1500 is 1.5k."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}"


def plural(amount: int, noun: str) -> str:
    """Write an amount with its noun: 1 task, 2 tasks."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"


def extent(summary: JsonObject) -> str:
    """Write how many tasks and rollouts a summary is of; also how many there should be, and how many have no score."""
    tasks, done = plural(int(summary.get("tasks") or 0), "task"), int(summary.get("rollouts") or 0)
    expected = int(summary.get("expected_rollouts", done))
    told = plural(done, "rollout") if expected == done else f"{count(done)} of {plural(expected, 'rollout')}"
    unscored = int(summary.get("unscored") or 0)
    return f"{tasks}, {told}" + (f", {count(unscored)} without a score" if unscored else "")


def bounds(estimate: JsonObject, *, share: bool = False) -> tuple[str, str] | None:
    """Write both ends of the 95 % interval of an estimate; None when it has none.

    Args:
        estimate: JSON of an `Estimate`.
        share: write percentages.
    """
    low, high = estimate.get("low"), estimate.get("high")
    if not (is_finite(low) and is_finite(high)):
        return None
    written = percent if share else number
    return written(low), written(high)


def interval(estimate: JsonObject, *, share: bool = False) -> str:
    """Write the 95 % interval of an estimate as `0.2–0.4`; empty when it has none."""
    ends = bounds(estimate, share=share)
    if ends is None:
        return ""
    if "-" in "".join(ends):
        return " to ".join(ends)  # a dash beside a minus would be read as one
    return "–".join([ends[0].removesuffix(" %"), ends[1]])


def basis(estimate: JsonObject) -> str:
    """Say over how many tasks an estimate is, when not over all; empty else."""
    used, total = estimate.get("tasks_used"), estimate.get("tasks_total")
    if not (isinstance(used, int) and isinstance(total, int)) or used == total:
        return ""
    return f"over {used:,} of {plural(total, 'task')}"
