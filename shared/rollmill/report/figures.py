"""The figures of one agent's summary: what `rollmill.metrics.summary.summarize` found, as charts with their numbers."""

from collections.abc import Sequence
from typing import Final

from rollmill.contracts.json import JsonObject
from rollmill.report.charts import (
    Bar,
    Curve,
    Dot,
    Point,
    curve_chart,
    outcome_chart,
    scatter_chart,
    solve_rate_chart,
)
from rollmill.report.markup import Content, Markup, tag
from rollmill.report.numbers import basis, compact, count, interval, is_finite, number, plural
from rollmill.report.tables import curve_table, table

_STYLES: Final = {"pass@k": "one", "pass^k": "two", "best@k": "three"}
_MEANINGS: Final = {
    "pass@k": "at least one of k rollouts is correct",
    "pass^k": "all k rollouts are correct",
    "best@k": "expected best score of k rollouts",
}


def solve_rate_figure(summary: JsonObject) -> Markup:
    """Show how many tasks are solved never, sometimes and always."""
    rates = summary["solve_rate"]
    none, some, every = (int(rates[name]) for name in ("none", "some", "all"))
    edges = rates["edges"]
    between = [
        Bar(int(amount), f"{100 * low:g} % to {100 * high:g} % of rollouts correct: {plural(int(amount), 'task')}")
        for amount, low, high in zip(rates["bins"], edges, edges[1:], strict=False)
    ]
    words = f"{plural(none, 'task')} never solved, {count(some)} sometimes, {count(every)} always"
    chart = solve_rate_chart(
        Bar(none, f"no rollout correct: {plural(none, 'task')}"),
        between,
        Bar(every, f"every rollout correct: {plural(every, 'task')}"),
        label=f"Histogram of solve rates: {words}.",
    )
    lines = [("none", count(none)), *_spans(rates["bins"], edges), ("all", count(every))]
    numbers = table("Tasks by the share of their rollouts that are correct", ("rollouts correct", "tasks"), lines)
    return figure("Solve rate", f"{words}.", chart, numbers)


def curve_figure(summary: JsonObject) -> Markup | None:
    """Show pass@k and pass^k against k; None when neither is defined."""
    curves = _curves(summary, ("pass@k", "pass^k"))
    if not curves:
        return None
    chart = curve_chart(
        curves, x_label="k, rollouts drawn", y_label="probability", label=f"{_ends(curves)} Bands are 95 % intervals."
    )
    told = _legend(curves, "Bands: 95\u00a0% intervals over tasks." + _hollow(curves))
    return figure("pass@k and pass^k", told, chart, curve_table(summary["curve"], [curve.name for curve in curves]))


def best_figure(summary: JsonObject) -> Markup | None:
    """Show best@k against k; None for scores of 0 and 1, where it is pass@k."""
    curves = [] if summary.get("binary") else _curves(summary, ("best@k",))
    if not curves:
        return None
    label = f"{_ends(curves)} The band is the 95 % interval."
    chart = curve_chart(curves, x_label="k, rollouts drawn", y_label="score", label=label, unit=False)
    told = _legend(curves, "Band: 95\u00a0% interval over tasks." + _hollow(curves))
    return figure("Best of k", told, chart, curve_table(summary["curve"], ["best@k"]))


def length_figure(summary: JsonObject) -> Markup | None:
    """Show reward against output tokens; None when no tokens are known."""
    length = summary.get("length") or {}
    points = [point for point in length.get("points", []) if is_finite(point[0]) and is_finite(point[1])]
    if not points:
        return None
    right, wrong = length.get("mean_output_tokens_right"), length.get("mean_output_tokens_wrong")
    words = _length_words(length, right, wrong)
    draw = _by_outcome if summary.get("binary") else _by_score
    chart = draw(summary, points, (right, wrong), f"Reward against output tokens. {' '.join(words)}")
    sampled = length.get("rollouts", len(points))
    if sampled > len(points):
        words.append(f"Drawn: {count(len(points))} of {count(sampled)} rollouts.")
    keys = [tag("span", "right", class_="key right"), " ", tag("span", "wrong", class_="key wrong"), " Dashed: means. "]
    return figure("Reward and length", [keys, " ".join(words)], chart)


def figure(title: str, told: Content, chart: Markup, numbers: Markup | None = None) -> Markup:
    """Put a chart under its title, with what it says in words, and its numbers to be unfolded."""
    folded = tag("details", tag("summary", "The numbers"), numbers, class_="plain") if numbers else None
    return tag("figure", tag("h3", title), chart, tag("figcaption", told), folded)


def _spans(bins: Sequence[int], edges: Sequence[float]) -> list[tuple[str, str]]:
    spans = zip(bins, edges, edges[1:], strict=False)
    return [(f"{100 * low:g} % to {100 * high:g} %", count(amount)) for amount, low, high in spans]


def _curves(summary: JsonObject, names: Sequence[str]) -> list[Curve]:
    found = [Curve(name, _STYLES[name], _points(summary.get("curve", []), name)) for name in names]
    return [curve for curve in found if curve.points]


def _points(curve: Sequence[JsonObject], name: str) -> list[Point]:
    return [
        Point(
            float(entry["k"]),
            float(estimate["value"]),
            estimate.get("low"),
            estimate.get("high"),
            _point_words(name.replace("k", str(entry["k"])), estimate),
            partial=bool(basis(estimate)),
        )
        for entry in curve
        if is_finite((estimate := entry.get(name) or {}).get("value"))
    ]


def _point_words(name: str, estimate: JsonObject) -> str:
    parts = (f"{name} = {number(estimate['value'])}", interval(estimate), basis(estimate))
    return ", ".join(part for part in parts if part)


def _ends(curves: Sequence[Curve]) -> str:
    """Say in words where curves start and end."""
    return " ".join(
        f"{curve.name} goes from {number(curve.points[0].y)} at k = {curve.points[0].x:g} "
        f"to {number(curve.points[-1].y)} at k = {curve.points[-1].x:g}."
        for curve in curves
    )


def _legend(curves: Sequence[Curve], told: str) -> Content:
    keys: list[Content] = []
    for curve in curves:
        keys += [tag("span", curve.name, class_=f"key {curve.style}"), f" {_MEANINGS[curve.name]}. "]
    return [*keys, told]


def _hollow(curves: Sequence[Curve]) -> str:
    partial = any(point.partial for curve in curves for point in curve.points)
    return " Hollow points are over the tasks with enough rollouts only." if partial else ""


def _length_words(length: JsonObject, right: float | None, wrong: float | None) -> list[str]:
    words = [
        f"Mean output tokens of {name} rollouts: {compact(mean)}."
        for name, mean in (("right", right), ("wrong", wrong))
        if mean is not None
    ]
    named = [(name, length.get(name)) for name in ("pearson", "spearman")]
    told = [f"{name.title()} {value:+.2f}" for name, value in named if value is not None]
    return [*words, f"Correlation of length and score: {', '.join(told)}."] if told else words


def _by_outcome(
    summary: JsonObject, points: Sequence[Sequence[float]], means: tuple[float | None, float | None], label: str
) -> Markup:
    at = summary.get("correct_at", 1.0)
    right = [point[0] for point in points if point[1] >= at]
    wrong = [point[0] for point in points if point[1] < at]
    return outcome_chart(right, wrong, means=means, x_label="output tokens", label=label)


def _by_score(
    summary: JsonObject, points: Sequence[Sequence[float]], means: tuple[float | None, float | None], label: str
) -> Markup:
    at = summary.get("correct_at", 1.0)
    dots = [
        Dot(
            point[0],
            point[1],
            f"{point[2]:g}:{point[3]:g}, {compact(point[0])} tokens, score {number(point[1])}",
            "right" if point[1] >= at else "wrong",
        )
        for point in points
    ]
    score = str(summary.get("score_field") or "reward")
    return scatter_chart(dots, means=means, x_label="output tokens", y_label=score[:24], label=label)
