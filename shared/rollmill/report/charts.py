"""The charts of a report: pure functions from numbers to SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rollmill.report.markup import Markup, tag
from rollmill.report.numbers import compact
from rollmill.report.plot import BOTTOM, LEFT, RIGHT, TOP, axes, picture, ticks, tooltip
from rollmill.report.scales import Scale, count_ticks, nice_ticks

_END_BAR: Final = 24.0
_GAP: Final = 10.0
_LINEAR_UP_TO: Final = 16
_BINS: Final = 24
_CROWD: Final = 300


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a histogram."""

    count: int
    words: str
    """What it tells when pointed at."""


@dataclass(frozen=True, slots=True)
class Point:
    """One estimate of a curve, with its interval when it has one."""

    x: float
    y: float
    low: float | None
    high: float | None
    words: str
    partial: bool = False
    """It is not over all tasks."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart."""

    name: str
    style: str
    """Class of the style sheet: `one`, `two` or `three`."""
    points: Sequence[Point]


@dataclass(frozen=True, slots=True)
class Dot:
    """One rollout of a scatter chart."""

    x: float
    y: float
    words: str
    style: str


def solve_rate_chart(none: Bar, between: Sequence[Bar], every: Bar, *, label: str) -> Markup:
    """Draw how many tasks are solved never, sometimes and always.

    Args:
        none: tasks with no rollout correct.
        between: tasks by the share of their rollouts that are correct, in bins of equal width over 0 to 1.
        every: tasks with all rollouts correct.
        label: what the chart shows, for those who do not see it.
    """
    highest = max(bar.count for bar in (none, *between, every))
    up = count_ticks(highest)
    y = Scale(0, up[-1], BOTTOM, TOP)
    inner = Scale(0, 1, LEFT + _END_BAR + _GAP, RIGHT - _END_BAR - _GAP)
    width = (inner.end - inner.start) / max(len(between), 1)
    middle = [_bar(bar, inner.start + index * width + 1, width - 2, y, "some") for index, bar in enumerate(between)]
    named = [
        *ticks(Scale(0, 1, LEFT + _END_BAR / 2, RIGHT - _END_BAR / 2), (0, 1), ("none", "all")),
        *ticks(inner, (0.2, 0.4, 0.6, 0.8), ("20 %", "40 %", "60 %", "80 %")),
    ]
    return picture(
        label,
        axes(named, ticks(y, up, _compacted(up)), x_label="rollouts correct", y_label="tasks"),
        _bar(none, LEFT + 1, _END_BAR - 1, y, "none"),
        middle,
        _bar(every, RIGHT - _END_BAR, _END_BAR - 1, y, "all"),
    )


def curve_chart(curves: Sequence[Curve], *, x_label: str, y_label: str, label: str, unit: bool = True) -> Markup:
    """Draw estimates against k with their intervals as bands.

    Args:
        curves: at least one with a point.
        x_label, y_label: names of the axes.
        label: what the chart shows, for those who do not see it.
        unit: the values are probabilities, so that the axis is 0 to 1.
    """
    drawn = [curve for curve in curves if curve.points]
    xs = sorted({point.x for curve in drawn for point in curve.points})
    bend: Callable[[float], float] = math.log2 if xs[-1] > _LINEAR_UP_TO else float
    low, high = bend(xs[0]), bend(xs[-1])
    across = Scale(low - (low == high), high + (low == high), LEFT + 8, RIGHT - 8)
    up = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0] if unit else _spanning(drawn)
    y = Scale(up[0], up[-1], BOTTOM, TOP)
    named = ticks(across, [bend(x) for x in xs], _compacted(xs))
    return picture(
        label,
        axes(named, ticks(y, up, _compacted(up)), x_label=x_label, y_label=y_label),
        [_curve(curve, lambda point: across(bend(point.x)), y) for curve in drawn],
    )


def outcome_chart(
    right: Sequence[float],
    wrong: Sequence[float],
    *,
    means: tuple[float | None, float | None],
    x_label: str,
    label: str,
) -> Markup:
    """Draw how a quantity is spread over right rollouts (upwards) and over wrong ones (downwards).

    Args:
        right: its value in each right rollout.
        wrong: its value in each wrong one; there is at least one value in both together.
        means: mean of the right and of the wrong ones.
        x_label: name of the quantity.
        label: what the chart shows, for those who do not see it.
    """
    values = [*right, *wrong]
    edges = nice_ticks(min(values), max(values), _BINS)
    x = Scale(edges[0], edges[-1], LEFT, RIGHT)
    halves = [_binned(right, edges), _binned(wrong, edges)]
    shares = [[count / max(sum(half), 1) for count in half] for half in halves]
    top = nice_ticks(0, max(map(max, shares)), 3)
    middle = (TOP + BOTTOM) / 2
    up, down = Scale(0, top[-1], middle, TOP), Scale(0, top[-1], middle, BOTTOM)
    named = nice_ticks(edges[0], edges[-1], 6)
    shown = [value for value in named if edges[0] <= value <= edges[-1]]
    percents = [f"{100 * value:g} %" for value in top]
    return picture(
        label,
        axes(
            ticks(x, shown, _compacted(shown)),
            [*ticks(up, top, percents), *ticks(down, top[1:], percents[1:])],
            x_label=x_label,
            y_label="share of rollouts",
        ),
        _half(edges, halves[0], shares[0], x, up, "right"),
        _half(edges, halves[1], shares[1], x, down, "wrong"),
        tag("line", x1=LEFT, x2=RIGHT, y1=middle, y2=middle, class_="axis"),
        _mean_line(means[0], x, middle, TOP, "right"),
        _mean_line(means[1], x, middle, BOTTOM, "wrong"),
    )


def scatter_chart(
    dots: Sequence[Dot], *, means: tuple[float | None, float | None], x_label: str, y_label: str, label: str
) -> Markup:
    """Draw one dot for each rollout.

    Args:
        dots: at least one.
        means: mean of x over the right rollouts and over the wrong ones.
        x_label, y_label: names of the axes.
        label: what the chart shows, for those who do not see it.
    """
    across = nice_ticks(min(dot.x for dot in dots), max(dot.x for dot in dots))
    up = nice_ticks(min(dot.y for dot in dots), max(dot.y for dot in dots))
    x, y = Scale(across[0], across[-1], LEFT + 4, RIGHT - 4), Scale(up[0], up[-1], BOTTOM - 4, TOP + 4)
    radius, crowd = (2.0, " crowded") if len(dots) > _CROWD else (3.0, "")
    marks = [
        tooltip("circle", dot.words, cx=x(dot.x), cy=y(dot.y), r=radius, class_=f"dot {dot.style}{crowd}")
        for dot in dots
    ]
    return picture(
        label,
        axes(ticks(x, across, _compacted(across)), ticks(y, up, _compacted(up)), x_label=x_label, y_label=y_label),
        marks,
        _mean_line(means[0], x, BOTTOM, TOP, "right"),
        _mean_line(means[1], x, BOTTOM, TOP, "wrong"),
    )


def interval_strip(value: float, low: float, high: float, *, span: tuple[float, float], words: str) -> Markup:
    """Draw one value with its interval as a small strip, for a table.

    Args:
        value, low, high: the value and its interval.
        span: values at both ends of the strip.
        words: what it tells when pointed at.
    """
    start, end = nice_ticks(*span)[0], nice_ticks(*span)[-1]
    x = Scale(start, end, 4, 116)
    return tag(
        "svg",
        tag("title", words),
        tag("line", x1=4, x2=116, y1=8, y2=8, class_="grid"),
        tag("line", x1=x(low), x2=x(high), y1=8, y2=8, class_="whisker"),
        tag("circle", cx=x(value), cy=8, r=3.5, class_="dot one"),
        viewBox="0 0 120 16",
        role="img",
        aria_label=words,
        class_="strip",
    )


def _bar(bar: Bar, x: float, width: float, y: Scale, style: str) -> Markup | None:
    if not bar.count:
        return None
    top = y(bar.count)
    return tooltip("rect", bar.words, x=x, y=top, width=width, height=BOTTOM - top, class_=f"bar {style}")


def _curve(curve: Curve, x: Callable[[Point], float], y: Scale) -> Markup:
    sure = [point for point in curve.points if point.low is not None and point.high is not None]
    forth = [f"{x(point):.2f},{y(point.high or 0.0):.2f}" for point in sure]
    back = [f"{x(point):.2f},{y(point.low or 0.0):.2f}" for point in reversed(sure)]
    line = " ".join(f"{x(point):.2f},{y(point.y):.2f}" for point in curve.points)
    whiskers = [
        tag("line", x1=x(point), x2=x(point), y1=y(point.low or 0.0), y2=y(point.high or 0.0), class_="whisker")
        for point in sure
    ]
    marks = [
        tooltip(
            "circle", point.words, cx=x(point), cy=y(point.y), r=3.5, class_="dot partial" if point.partial else "dot"
        )
        for point in curve.points
    ]
    return tag(
        "g",
        tag("polygon", points=" ".join(forth + back), class_="band") if len(sure) > 1 else None,
        whiskers,
        tag("polyline", points=line, class_="line") if len(curve.points) > 1 else None,
        marks,
        class_=f"series {curve.style}",
    )


def _spanning(curves: Sequence[Curve]) -> list[float]:
    values = [
        value
        for curve in curves
        for point in curve.points
        for value in (point.y, point.low, point.high)
        if value is not None
    ]
    return nice_ticks(min(values), max(values))


def _binned(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    counts = [0] * (len(edges) - 1)
    width = (edges[-1] - edges[0]) / len(counts)
    for value in values:
        counts[min(max(int((value - edges[0]) / width), 0), len(counts) - 1)] += 1
    return counts


def _half(
    edges: Sequence[float], counts: Sequence[int], shares: Sequence[float], x: Scale, y: Scale, style: str
) -> list[Markup]:
    bars = []
    for low, high, count, share in zip(edges, edges[1:], counts, shares, strict=False):
        top, bottom = sorted((y(0), y(share)))
        words = f"{compact(low)} to {compact(high)}: {count} {style}"
        size = {"x": x(low) + 0.5, "y": top, "width": max(x(high) - x(low) - 1, 0.5), "height": bottom - top}
        if count:
            bars.append(tooltip("rect", words, **size, class_=f"bar {style}"))
    return bars


def _mean_line(mean: float | None, x: Scale, start: float, end: float, style: str) -> Markup | None:
    if mean is None:
        return None
    at = x(mean)
    words = f"mean of {style}: {compact(mean)}"
    return tooltip("line", words, x1=at, x2=at, y1=start, y2=end, class_=f"mean {style}")


def _compacted(values: Sequence[float]) -> list[str]:
    return [compact(value) for value in values]
