"""The section of one agent, and the table that sets all agents side by side."""

from collections.abc import Mapping
from typing import Final

from rollmill.contracts.json import JsonObject
from rollmill.report.figures import best_figure, curve_figure, length_figure, solve_rate_figure
from rollmill.report.headlines import Headline, headlines
from rollmill.report.markup import Content, Markup, tag
from rollmill.report.numbers import NOTHING, compact, count, extent
from rollmill.report.tables import Link, estimates_table, failure_table, percentile_table, table, task_table

_SHARED: Final = ("mean_reward", "zero_variance_share", "truncation_rate")
_NO_FAILURE: Final = tag("p", "No attempt failed.", class_="quiet")


def agent_anchor(at: int) -> str:
    """Return the name that links to an agent's section go to."""
    return f"agent-{at + 1}"


def overview(agents: Mapping[str, JsonObject]) -> Markup | None:
    """Set agents side by side; None when there is one only."""
    if len(agents) < 2:
        return None
    lines: list[tuple[Content, ...]] = []
    for at, (name, summary) in enumerate(agents.items()):
        found = {headline.name: headline for headline in headlines(summary)}
        lines.append(
            (
                tag("a", tag("bdi", name or "no agent"), href=f"#{agent_anchor(at)}"),
                count(summary.get("tasks")),
                count(summary.get("rollouts")),
                *(found[column].value if column in found else NOTHING for column in _SHARED[:1]),
                found["mean_reward"].interval or NOTHING if "mean_reward" in found else NOTHING,
                *(found[column].value if column in found else NOTHING for column in _SHARED[1:]),
            )
        )
    header = ("agent", "tasks", "rollouts", "mean", "95 % interval", "zero variance", "truncated")
    return tag("section", tag("h2", "Agents"), table("All agents side by side", header, lines))


def agent_section(at: int, name: str, summary: JsonObject, link: Link) -> Markup:
    """Make the section of one agent.

    Args:
        at: its place among the agents, from 0.
        name: its name; empty for rollouts that name none.
        summary: what `rollmill.metrics.summary.summarize` says of it.
        link: makes the link to a rollout.
    """
    heading = tag("h2", tag("bdi", name or "no agent"), id=agent_anchor(at))
    failed = failure_table(summary.get("failures") or {})
    if not summary.get("rollouts"):
        return tag("section", heading, tag("p", f"{extent(summary)}."), failed or _NO_FAILURE)
    return tag(
        "section",
        heading,
        tag("p", f"{extent(summary)}.", " ", _scoring(summary)),
        tag("dl", [_tile(headline) for headline in headlines(summary)], class_="tiles"),
        _figures(summary),
        tag("div", _tasks(summary, link), class_="lists"),
        tag("div", percentile_table(summary.get("percentiles", {})), failed, class_="lists"),
        None if failed else _NO_FAILURE,
        tag("details", tag("summary", "Every estimate"), estimates_table(summary.get("estimates", {})), class_="plain"),
    )


def _figures(summary: JsonObject) -> Markup:
    drawn = [draw(summary) for draw in (solve_rate_figure, curve_figure, best_figure, length_figure)]
    figures = [figure for figure in drawn if figure is not None]
    return tag("div", figures, class_="figures four" if len(figures) == 4 else "figures")


def _scoring(summary: JsonObject) -> str:
    score = summary.get("score_field") or "reward"
    return (
        f"The score is “{score}”; a rollout is correct when it is at least {compact(summary.get('correct_at', 1.0))}."
    )


def _tile(headline: Headline) -> Markup:
    told = f"95 %: {headline.interval}" if headline.interval else "no interval"
    return tag(
        "div",
        tag("dt", headline.label),
        tag("dd", headline.value, class_="value"),
        tag("dd", told, class_="note"),
        tag("dd", headline.basis, class_="note") if headline.basis else None,
    )


def _tasks(summary: JsonObject, link: Link) -> list[Markup]:
    named = (("Hardest tasks", "hardest"), ("Most uncertain tasks", "most_uncertain"))
    return [task_table(caption, summary[name], link) for caption, name in named if summary.get(name)]
