"""The tables of a report."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from rollmill.contracts.json import JsonObject
from rollmill.report.charts import interval_strip
from rollmill.report.markup import Content, Markup, tag
from rollmill.report.numbers import basis, count, interval, is_finite, number, plural

Link: TypeAlias = Callable[[str], Markup | None]
"""Makes the link to a rollout from its id; None when the report does not show that rollout."""
_QUANTITIES: Final = {"output_tokens": "output tokens", "total_tokens": "tokens in all"}


def table(caption: str, header: Sequence[str], lines: Sequence[Sequence[Content]], *, numbers: bool = True) -> Markup:
    """Make a table whose first column names its lines.

    Args:
        caption: what it holds.
        header: name of each column.
        lines: the cells of each line.
        numbers: the other columns are numbers, and stand to the right.
    """
    body = [tag("tr", tag("th", line[0], scope="row"), [tag("td", cell) for cell in line[1:]]) for line in lines]
    head = tag("tr", [tag("th", name, scope="col") for name in header])
    made = tag(
        "table", tag("caption", caption), tag("thead", head), tag("tbody", body), class_="numbers" if numbers else None
    )
    return tag("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def estimates_table(estimates: JsonObject) -> Markup:
    """List every estimate with what it is worth."""
    lines = [
        (
            name,
            number(estimate.get("value")),
            interval(estimate) or "–",
            number(estimate.get("standard_error")),
            _tasks(estimate),
            count(estimate.get("rollouts")),
            str(estimate.get("method") or ""),
        )
        for name, estimate in estimates.items()
    ]
    header = ("estimate", "value", "95 % interval", "standard error", "tasks", "rollouts", "method")
    return table("Every estimate", header, lines)


def curve_table(curve: Sequence[JsonObject], families: Sequence[str]) -> Markup:
    """List the points of the curves."""
    lines = [
        (str(point["k"]), *(_valued(point.get(family, {})) for family in families), _tasks(point.get(families[0], {})))
        for point in curve
    ]
    return table("Estimates by k", ("k", *families, "tasks"), lines)


def percentile_table(percentiles: JsonObject) -> Markup | None:
    """List what half, nine in ten and ninety-nine in a hundred rollouts stay below; None when nothing is known."""
    columns = ("p50", "p90", "p99")
    lines = [
        (_QUANTITIES.get(name, name), *(number(values.get(column)) for column in columns))
        for name, values in percentiles.items()
        if values
    ]
    return table("Percentiles over rollouts", ("", "half below", "90 % below", "99 % below"), lines) if lines else None


def task_table(caption: str, tasks: Sequence[JsonObject], link: Link) -> Markup:
    """List tasks with their mean, its interval and their rollouts."""
    ends = [task.get(name) for task in tasks for name in ("low", "high", "mean_reward")]
    known: list[float] = [value for value in ends if is_finite(value)]
    span = (min([0.0, *known]), max([1.0, *known]))
    lines = [
        (
            f"task {task['task']}",
            number(task.get("mean_reward")),
            _strip(task, span),
            count(task.get("num_rollouts")),
            _links(task.get("rollouts", []), link),
        )
        for task in tasks
    ]
    return table(caption, ("task", "mean", "95 % interval", "rollouts", "conversations"), lines)


def failure_table(failures: JsonObject) -> Markup | None:
    """List failed attempts by class and by the service that failed; None when there were none."""
    named = (("class", "by_class"), ("failed service", "by_boundary"))
    lines = [
        (f"{kind}: {name}", count(amount))
        for kind, member in named
        for name, amount in sorted(failures.get(member, {}).items(), key=lambda one: (-one[1], one[0]))
    ]
    return table("Failed attempts", ("what failed", "attempts"), lines) if lines else None


def _strip(task: JsonObject, span: tuple[float, float]) -> Content:
    low, high, value = task.get("low"), task.get("high"), task.get("mean_reward")
    if not (is_finite(low) and is_finite(high) and is_finite(value)):
        return "–"
    words = f"{number(value)}, 95 % interval {number(low)} to {number(high)}"
    return interval_strip(value, low, high, span=span, words=words)


def _links(ids: Sequence[str], link: Link) -> Content:
    linked = [made for made in map(link, ids) if made is not None]
    more = len(ids) - len(linked)
    rest = tag("span", f"{more:,} more" if linked else "not shown", class_="unlinked") if more else None
    return [[made, " "] for made in linked], rest


def _tasks(estimate: JsonObject) -> str:
    return basis(estimate).removeprefix("over ") or plural(int(estimate.get("tasks_total") or 0), "task")


def _valued(estimate: JsonObject) -> str:
    words = interval(estimate)
    return number(estimate.get("value")) + (f" ({words})" if words else "")
