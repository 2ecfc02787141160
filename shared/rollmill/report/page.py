"""A profile as one HTML file that needs nothing else: no script, no network, no font, no image.

The page is closed to everything by its own policy (`default-src 'none'`), save its one style sheet, by its digest.
"""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from itertools import zip_longest
from typing import Final, TypeAlias

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import REWARD, Row
from rollmill.openai.items import as_json_text
from rollmill.report.agents import agent_anchor, agent_section, overview
from rollmill.report.conversation import anchor, rollout_details
from rollmill.report.markup import Markup, join, raw_style, tag
from rollmill.report.numbers import count, number, percent, plural

Rollouts: TypeAlias = Callable[[list[str]], dict[str, Row]]
"""Given rollout ids (`"t:r"`), returns those of the rows that it finds."""

MOST_ROLLOUTS: Final = 60
"""Conversations in a report."""

_MEANINGS: Final = {
    "95 % interval": "Made so that it holds the true value in 95 of 100 cases, were other tasks of that kind drawn. "
    "Tasks are the unit: rollouts of one task are not independent of each other.",
    "pass@k": "Probability that at least one of k rollouts of a task, drawn without replacement, is correct.",
    "pass^k": "Probability that all k are correct.",
    "best@k": "Expected highest score among k.",
    "majority@k": "Probability that the most frequent answer among k is correct; ties are split evenly.",
    "zero variance": "Tasks whose rollouts all have the same reward: group-relative training learns nothing from them.",
    "effective batch": "Share of the rollouts that are of tasks with some variance.",
}


def render_report(
    title: str,
    agents: Mapping[str, JsonObject],
    *,
    completion: JsonObject,
    rollouts: Rollouts,
    made: JsonObject,
) -> bytes:
    """Render a profile as a self-contained HTML page.

    Args:
        title: what the run is called.
        agents: by name, what `rollmill.metrics.summary.summarize` says of each.
        completion: how complete the run is, as in the classic profile.
        rollouts: finds the rollouts that the page shows; called once, with at most `MOST_ROLLOUTS` ids.
        made: how the page was made: version, run id, seed and what else there is, as single values.

    Returns:
        UTF-8. Texts of models and tasks are in it as text only, long ones cut, with their length told.
    """
    chosen = pick_rollouts(agents)
    found = rollouts(chosen) if chosen else {}
    shown = {rollout: found[rollout] for rollout in chosen if rollout in found}
    css = files("rollmill.report").joinpath("report.css").read_text(encoding="utf-8")
    body = join(
        _header(title, agents, completion),
        tag("main", overview(agents), list(_sections(agents, shown)), _conversations(shown), _method(made)),
    )
    page = tag("html", _head(title, css), tag("body", body), lang="en")
    return f"<!DOCTYPE html>\n{page}\n".encode("utf-8", "backslashreplace")


def pick_rollouts(agents: Mapping[str, JsonObject], most: int = MOST_ROLLOUTS) -> list[str]:
    """Choose the rollouts to show: first one of each listed task, the foremost tasks first, then a second of each.

    Args:
        agents: summaries by name.
        most: most rollouts.
    """
    lists = [summary.get(name, []) for summary in agents.values() for name in ("hardest", "most_uncertain")]
    tasks = [task for rank in zip_longest(*lists) for task in rank if task is not None]
    rounds = zip_longest(*(map(str, task.get("rollouts", [])) for task in tasks))
    ids = dict.fromkeys(rollout for one in rounds for rollout in one if rollout is not None)
    return sorted(list(ids)[:most], key=_order)


def policy(css: str) -> str:
    """Return the content security policy of a page with this style sheet."""
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _order(rollout: str) -> tuple[int, ...]:
    """Put the rollouts of a task beside each other."""
    return tuple(int(part) for part in rollout.split(":") if part.isdecimal())


def _head(title: str, css: str) -> Markup:
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(css)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{title}: reward profile"),
        raw_style(css),
    )


def _header(title: str, agents: Mapping[str, JsonObject], completion: JsonObject) -> Markup:
    done, expected = completion.get("completed_rollouts"), completion.get("expected_rollouts")
    told = f"{count(done)} of {plural(int(expected or 0), 'rollout')} finished"
    share = completion.get("reward_profile_completion_pct")
    rest = {name: int(completion.get(f"{name}_tasks") or 0) for name in ("partial", "missing")}
    names = {"partial": "partly done", "missing": "not begun"}
    parts = [f"{plural(amount, 'task')} {names[name]}" for name, amount in rest.items() if amount]
    if refused := int(completion.get("refused_rollouts") or 0):
        parts.append(f"{plural(refused, 'rollout')} refused, their reward is not a finite number")
    warning = tag("p", f"Not complete: {', '.join(parts)}.", class_="warning") if parts else None
    links = [
        tag("li", tag("a", tag("bdi", name or "no agent"), href=f"#{agent_anchor(at)}"))
        for at, name in enumerate(agents)
    ]
    return tag(
        "header",
        tag("p", "Reward profile", class_="kind"),
        tag("h1", title, dir="auto"),
        tag("p", told, f" ({percent(share / 100)})." if share is not None else "."),
        warning,
        tag("nav", tag("ul", links, tag("li", tag("a", "How it was made", href="#made"))), aria_label="Sections"),
    )


def _sections(agents: Mapping[str, JsonObject], shown: Mapping[str, Row]) -> Iterator[Markup]:
    def link(rollout: str) -> Markup | None:
        if rollout not in shown:
            return None
        reward = number(shown[rollout].get(REWARD))
        return tag("a", rollout, href=f"#{anchor(rollout)}", title=f"reward {reward}")

    for at, (name, summary) in enumerate(agents.items()):
        yield agent_section(at, name, summary, link)


def _conversations(shown: Mapping[str, Row]) -> Markup | None:
    if not shown:
        return None
    return tag(
        "section",
        tag("h2", "Rollouts"),
        tag(
            "p",
            "Of the hardest and the most uncertain tasks. Whatever models and tasks wrote is shown as text, "
            "long texts without their middle.",
        ),
        [rollout_details(rollout, row) for rollout, row in shown.items()],
        class_="conversations",
    )


def _method(made: JsonObject) -> Markup:
    facts = [(tag("dt", name.replace("_", " ")), tag("dd", _value(value))) for name, value in made.items()]
    words = [(tag("dt", name), tag("dd", meaning)) for name, meaning in _MEANINGS.items()]
    return tag(
        "section",
        tag("h2", "How it was made"),
        tag("dl", facts, class_="facts"),
        tag("h3", "What the numbers mean"),
        tag("dl", words, class_="facts"),
        id="made",
    )


def _value(value: JsonValue) -> str:
    return as_json_text(value) or "–"
