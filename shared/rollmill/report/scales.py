import math
from dataclasses import dataclass
from typing import Final

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_LARGEST: Final = 1e300  # beyond, a span could overflow
_SMALLEST: Final = 1e-290  # below, a step could underflow


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to coordinates along a straight line.

    Args:
        low, high: values at both ends, low < high.
        start, end: their coordinates.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate of a value; one outside of the range is moved to the nearer end."""
        inside = min(max(value, self.low), self.high)
        return self.start + (self.end - self.start) * (inside - self.low) / (self.high - self.low)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values that span a range, evenly spaced in steps of 1, 2, 2.5 or 5 times a power of ten.

    Args:
        low: smallest value to span, finite.
        high: largest value to span, finite; when it is not above `low`, the range is widened around it.
        most: most ticks, at least 3.

    Returns:
        At least two ascending values; the first is at most `low`, the last at least `high`.
    """
    low, high = _widened(*(min(max(value, -_LARGEST), _LARGEST) for value in (low, high)))
    step = _nice_step((high - low) / (most - 1))
    while math.ceil(high / step) - math.floor(low / step) + 1 > most:
        step = _nice_step(step * 1.01)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [_clean(index * step, step) for index in range(first, last + 1)]


def count_ticks(high: int, most: int = 6) -> list[float]:
    """Return whole, evenly spaced values from 0 to at least `high`, at least 1."""
    if high < most:
        return [float(value) for value in range(max(high, 1) + 1)]
    ticks = nice_ticks(0, high, most)
    step = ticks[1] - ticks[0]
    return ticks if step == int(step) else [float(value) for value in range(0, high + 5, 5)]  # the step was 2.5


def _widened(low: float, high: float) -> tuple[float, float]:
    if high - low > max(_SMALLEST, 1e-9 * max(abs(low), abs(high))):
        return low, high
    margin = abs(low) / 10 if abs(low) > _SMALLEST else 0.5  # all values are the same
    return low - margin, low + margin


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in _STEPS if power * step >= rough * (1 - 1e-9))


def _clean(value: float, step: float) -> float:
    """Remove the last digits that adding up steps gets wrong."""
    return round(value, max(0, 2 - math.floor(math.log10(step)))) + 0.0
