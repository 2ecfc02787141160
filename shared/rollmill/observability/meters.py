"""Numbers about this process, in the text format of Prometheus (version 0.0.4).

Counting is plain arithmetic on the event loop, without locks; text is made when somebody asks for it.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
MOST_SERIES: Final = 1000
"""Combinations of labels that one meter keeps apart; what comes later is counted together, as `other`."""
OTHER: Final = "other"
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""Bounds for times from one call to a long rollout."""

Labels: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = Mapping[Labels, float]


class Meter(Protocol):
    """A number, or a family of numbers told apart by labels."""

    def lines(self) -> Iterator[str]:
        """Yield its lines in the text format."""


class Counter:
    """Counts up.

    Args:
        name: ends in `_total`.
        meaning: one sentence.
        labels: names of the labels.
    """

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.values: dict[Labels, float] = {} if labels else {(): 0}
        self._name, self._meaning, self._labels = name, meaning, labels

    def add(self, *labels: str, amount: float = 1) -> None:
        """Add to the number with these labels."""
        try:
            self.values[labels] += amount
        except KeyError:
            labels = _kept(labels, self.values)
            self.values[labels] = self.values.get(labels, 0) + amount

    def lines(self) -> Iterator[str]:
        """See `Meter.lines`."""
        yield from _head(self._name, "counter", self._meaning)
        yield from _samples(self._name, self._labels, self.values)


class Gauge:
    """Goes up and down; it is looked at when somebody asks.

    Args:
        name: of the number.
        meaning: one sentence.
        labels: names of the labels.
        read: returns the numbers of now by the values of their labels, few of them.
    """

    def __init__(self, name: str, meaning: str, *labels: str, read: Callable[[], Numbers]) -> None:
        self._name, self._meaning, self._labels, self._read = name, meaning, labels, read

    def lines(self) -> Iterator[str]:
        """See `Meter.lines`."""
        yield from _head(self._name, "gauge", self._meaning)
        yield from _samples(self._name, self._labels, self._read())


class Histogram:
    """Counts observations by size.

    Args:
        name: of the family; ends in the unit.
        meaning: one sentence.
        labels: names of the labels.
        bounds: upper ends of the buckets, rising, each included.
    """

    def __init__(self, name: str, meaning: str, *labels: str, bounds: tuple[float, ...] = SECONDS) -> None:
        self._values: dict[Labels, _Buckets] = {} if labels else {(): _Buckets(bounds)}
        self._name, self._meaning, self._labels, self._bounds = name, meaning, labels, bounds

    def observe(self, value: float, *labels: str) -> None:
        """Count one observation."""
        buckets = self._values.get(labels)
        if buckets is None:
            buckets = self._values.setdefault(_kept(labels, self._values), _Buckets(self._bounds))
        buckets.counts[bisect_left(self._bounds, value)] += 1
        buckets.sum += value

    def lines(self) -> Iterator[str]:
        """See `Meter.lines`."""
        yield from _head(self._name, "histogram", self._meaning)
        names = (*self._labels, "le")
        for labels, buckets in list(self._values.items()):
            count = 0
            for bound, found in zip((*self._bounds, math.inf), buckets.counts, strict=True):
                count += found
                yield _sample(f"{self._name}_bucket", names, (*labels, _number(bound)), count)
            yield _sample(f"{self._name}_sum", self._labels, labels, buckets.sum)
            yield _sample(f"{self._name}_count", self._labels, labels, count)


class _Buckets:
    __slots__ = ("counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0


def exposition(meters: Iterable[Meter]) -> str:
    """Return the meters as one text document."""
    return "\n".join([*(line for meter in meters for line in meter.lines()), ""])


def _kept(labels: Labels, known: Mapping[Labels, object]) -> Labels:
    return labels if len(known) < MOST_SERIES else (OTHER,) * len(labels)


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _samples(name: str, names: Labels, values: Numbers) -> Iterator[str]:
    for labels, value in list(values.items()):
        yield _sample(name, names, labels, value)


def _sample(name: str, names: Labels, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(names, labels, strict=True))
    return f"{name}{{{pairs}}} {_number(value)}" if pairs else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
