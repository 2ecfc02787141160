import base64
import copy
import hashlib
import re
from collections.abc import Callable
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.report import render_report
from rollmill.report.page import MOST_ROLLOUTS, pick_rollouts

COMPLETE = {
    "expected_rollouts": 96,
    "completed_rollouts": 96,
    "missing_rollouts": 0,
    "complete_tasks": 12,
    "partial_tasks": 0,
    "missing_tasks": 0,
    "reward_profile_completion_pct": 100.0,
}


def found(ids: list[str]) -> dict[str, Row]:
    return {
        rollout: {
            "agent_ref": {"name": "solver"},
            "responses_create_params": {"input": f"Question {rollout}?"},
            "response": {"output": [{"type": "message", "role": "assistant", "content": f"Answer {rollout}."}]},
            "reward": 1.0,
        }
        for rollout in ids
    }


def render(
    agents: dict[str, JsonObject],
    *,
    title: str = "demo",
    completion: JsonObject = COMPLETE,
    rollouts: Callable[[list[str]], dict[str, Row]] = found,
    made: JsonObject | None = None,
) -> bytes:
    return render_report(title, agents, completion=completion, rollouts=rollouts, made=made or {"seed": 0})


def parsed(page: bytes) -> Element:
    assert page.startswith(b"<!DOCTYPE html>\n<html")
    return ElementTree.fromstring(page)


def text(element: Element) -> str:
    return "".join(element.itertext())


def headings(page: Element) -> list[str]:
    return [text(one) for one in page.iter() if one.tag in ("h1", "h2", "h3", "caption")]


def classed(page: Element, style: str) -> list[Element]:
    return [one for one in page.iter() if style in (one.get("class") or "").split()]


def tiles(page: Element) -> list[list[str]]:
    """The headline numbers of the first agent, each with its notes."""
    return [[text(part) for part in tile] for tile in classed(page, "tiles")[0]]


def test_a_page_has_everything_that_a_profile_has_to_say(summary: JsonObject) -> None:
    page = parsed(render({"solver": summary}, made={"run_id": "r-1", "rollmill_version": "0.1.0", "seed": 7}))

    assert headings(page) == [
        "demo",
        "solver",
        "Solve rate",
        "Tasks by the share of their rollouts that are correct",
        "pass@k and pass^k",
        "Estimates by k",
        "Reward and length",
        "Hardest tasks",
        "Most uncertain tasks",
        "Percentiles over rollouts",
        "Failed attempts",
        "Every estimate",
        "Rollouts",
        "How it was made",
        "What the numbers mean",
    ]
    assert "96 of 96 rollouts finished (100.0 %)." in text(page)
    assert "upstream-timeout" in text(page)
    facts = [text(one) for one in classed(page, "facts")[0]]
    assert facts == ["run id", "r-1", "rollmill version", "0.1.0", "seed", "7"]


def test_headline_numbers_stand_with_their_intervals(summary: JsonObject) -> None:
    assert tiles(parsed(render({"solver": summary}))) == [
        ["mean reward", "0.500", "95 %: 0.400–0.600"],
        ["pass@8", "0.950", "95 %: 0.850–1.000"],
        ["pass^8", "0.200", "95 %: 0.100–0.300"],
        ["majority@8", "0.600", "95 %: 0.500–0.700"],
        ["no answer", "2.0 %", "95 %: 0.0–12.0 %"],
        ["truncated", "0.0 %", "95 %: 0.0–10.0 %"],
        ["zero variance", "25.0 %", "95 %: 15.0–35.0 %"],
        ["effective batch", "75.0 %", "95 %: 65.0–85.0 %"],
    ]


def test_pass_at_k_is_told_for_the_largest_k_that_all_tasks_allow(summary: JsonObject) -> None:
    for name in ("pass@4", "pass@8"):
        summary["estimates"][name]["tasks_used"] = 3
    page = parsed(render({"solver": summary}))

    assert ["pass@2", "0.700", "95 %: 0.600–0.800"] in tiles(page)
    assert not any(label in ("pass@4", "pass@8") for label, *_ in tiles(page))
    assert "3 of 12 tasks" in text(page)


def test_an_estimate_over_fewer_tasks_says_so(summary: JsonObject) -> None:
    summary["estimates"]["majority@8"]["tasks_used"] = 3
    summary["curve"][3]["pass@k"]["tasks_used"] = 3
    page = parsed(render({"solver": summary}))

    assert ["majority@8", "0.600", "95 %: 0.500–0.700", "over 3 of 12 tasks"] in tiles(page)
    assert "Hollow points are over the tasks with enough rollouts only." in text(page)
    assert len(classed(page, "partial")) == 1


def test_no_script_runs_and_nothing_is_loaded(summary: JsonObject) -> None:
    source = render({"solver": summary})
    page = parsed(source)

    policy = next(one.get("content") or "" for one in page.iter("meta") if one.get("http-equiv"))
    css = text(next(page.iter("style")))
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert {one.tag for one in page.iter()} & {"script", "link", "img", "iframe", "object", "base", "form"} == set()
    assert all(href.startswith("#") for one in page.iter() if (href := one.get("href")))
    names = {name for one in page.iter() for name in one.attrib}
    assert [name for name in names if name.startswith("on") or name in ("src", "style", "srcset")] == []
    assert re.search(rb"url\(|@import|https?:", source) is None


def test_every_link_leads_somewhere(summary: JsonObject) -> None:
    page = parsed(render({"one": summary, "two": summary}))

    ids = [one.get("id") for one in page.iter() if one.get("id")]
    links = {(one.get("href") or "").removeprefix("#") for one in page.iter("a")}
    assert len(ids) == len(set(ids))
    assert links <= set(ids)
    assert {"agent-1", "agent-2", "made", "rollout-0-0"} <= links


def test_rollouts_of_the_hardest_and_most_uncertain_tasks_are_shown_and_asked_for_once(summary: JsonObject) -> None:
    asked: list[list[str]] = []

    def finder(ids: list[str]) -> dict[str, Row]:
        asked.append(ids)
        return found(ids)

    page = parsed(render({"solver": summary}, rollouts=finder))

    assert len(asked) == 1
    assert len(asked[0]) == len(set(asked[0])) == MOST_ROLLOUTS
    (section,) = classed(page, "conversations")
    assert len(list(section.iter("details"))) == MOST_ROLLOUTS
    assert "Answer 0:0." in text(section)


def test_rollouts_that_are_not_found_are_not_linked(summary: JsonObject) -> None:
    page = parsed(render({"solver": summary}, rollouts=lambda ids: found(ids[:1])))
    nothing = parsed(render({"solver": summary}, rollouts=lambda ids: {}))

    assert [one.text for one in page.iter("a") if (one.get("href") or "").startswith("#rollout")] == ["0:0"]
    assert classed(nothing, "conversations") == []
    assert "Rollouts" not in headings(nothing)


def test_the_foremost_tasks_of_every_agent_come_first() -> None:
    one = {"hardest": [{"rollouts": ["1:0", "1:1"]}, {"rollouts": ["2:0"]}], "most_uncertain": [{"rollouts": ["1:0"]}]}
    two = {"hardest": [{"rollouts": ["3:0", "3:1"]}], "most_uncertain": []}

    assert pick_rollouts({"a": one, "b": two}, most=3) == ["1:0", "2:0", "3:0"]
    assert pick_rollouts({"a": one, "b": two}, most=4) == ["1:0", "1:1", "2:0", "3:0"]
    assert pick_rollouts({"a": one, "b": two}) == ["1:0", "1:1", "2:0", "3:0", "3:1"]
    assert pick_rollouts({}) == []


def test_agents_are_set_side_by_side_when_there_are_several(summary: JsonObject) -> None:
    alone, both = parsed(render({"one": summary})), parsed(render({"one": summary, "two": summary}))

    assert "All agents side by side" not in headings(alone)
    assert "All agents side by side" in headings(both)


def test_a_run_that_is_not_complete_says_so(summary: JsonObject) -> None:
    summary["expected_rollouts"] = 192
    partial = {
        **COMPLETE,
        "expected_rollouts": 192,
        "partial_tasks": 2,
        "missing_tasks": 1,
        "reward_profile_completion_pct": 50.0,
        "refused_rollouts": 3,
    }
    page = parsed(render({"solver": summary}, completion=partial))

    (warning,) = classed(page, "warning")
    assert text(warning) == (
        "Not complete: 2 tasks partly done, 1 task not begun, 3 rollouts refused, their reward is not a finite number."
    )
    assert "96 of 192 rollouts finished (50.0 %)." in text(page)
    assert "12 tasks, 96 of 192 rollouts." in text(page)
    assert classed(parsed(render({"solver": summary})), "warning") == []


def test_an_agent_without_rollouts_has_a_section_that_says_so(summary: JsonObject) -> None:
    idle = {"tasks": 0, "rollouts": 0, "expected_rollouts": 8, "estimates": {}, "failures": summary["failures"]}
    page = parsed(render({"solver": summary, "idle": idle}))

    assert "0 tasks, 0 of 8 rollouts." in text(page)
    assert "idle" in headings(page)


def test_a_run_without_agents_is_a_page_too() -> None:
    page = parsed(render({}, completion={}))

    assert headings(page) == ["demo", "How it was made", "What the numbers mean"]


def test_continuous_scores_get_a_scatter_and_best_of_k(summary: JsonObject) -> None:
    summary |= {"binary": False, "score_field": "accuracy", "correct_at": 0.5}
    summary["length"]["points"] = [[100.0, 0.25, 3, 1], [200.0, 0.75, 4, 2]]
    page = parsed(render({"solver": summary}))

    assert "Best of k" in headings(page)
    assert "best@8" in [label for label, *_ in tiles(page)]
    assert "The score is “accuracy”; a rollout is correct when it is at least 0.5." in text(page)
    assert "Drawn: 2 of 96 rollouts." in text(page)
    titles = [one.text for one in page.iter("title")]
    assert "3:1, 100 tokens, score 0.250" in titles


@pytest.mark.parametrize("missing", ["length", "curve", "percentiles", "hardest", "most_uncertain", "failures"])
def test_what_is_not_known_is_left_out(summary: JsonObject, missing: str) -> None:
    without = copy.deepcopy(summary)
    without[missing] = type(summary[missing])()

    assert len(headings(parsed(render({"solver": without})))) < len(headings(parsed(render({"solver": summary}))))


def test_undefined_estimates_are_left_out_of_the_headlines(summary: JsonObject) -> None:
    for name in ("standard_error", "low", "high"):
        summary["estimates"]["no_answer"].pop(name)
        summary["estimates"]["mean_reward"].pop(name)
    summary["estimates"]["no_answer"].pop("value")
    shown = tiles(parsed(render({"solver": summary})))

    assert "no answer" not in [label for label, *_ in shown]
    assert ["mean reward", "0.500", "no interval"] in shown


def test_names_and_facts_are_text(summary: JsonObject) -> None:
    evil = "</title><script>alert(1)</script>"
    summary["failures"] = {"by_class": {evil: 1}, "by_boundary": {evil: 1}}
    summary["score_field"] = evil
    page = parsed(render({evil: summary, "b": summary}, title=evil, made={evil: evil, "list": [evil], "none": None}))

    assert "script" not in {one.tag for one in page.iter()}
    assert text(page).count(evil) > 8


def test_the_same_profile_is_the_same_page(summary: JsonObject) -> None:
    assert render({"solver": summary}) == render({"solver": copy.deepcopy(summary)})


def test_a_page_stays_small_whatever_the_models_wrote(summary: JsonObject) -> None:
    def finder(ids: list[str]) -> dict[str, Row]:
        turn = {"type": "message", "role": "assistant", "content": "<" * 100_000}
        return {rollout: {"response": {"output": [turn] * 200}, "reward": 0.0} for rollout in ids}

    assert len(render({"solver": summary}, rollouts=finder)) < 15_000_000


def test_charts_and_tables_can_be_read_without_seeing_them(summary: JsonObject) -> None:
    page = parsed(render({"one": summary, "two": summary}))

    assert page.get("lang") == "en"
    assert all(one.get("role") == "img" and one.get("aria-label") for one in page.iter("svg"))
    assert all(table.find("caption") is not None for table in page.iter("table") if table.get("class") != "fields")
    assert all(cell.get("scope") in ("row", "col") for cell in page.iter("th"))
    assert all(one.get("aria-label") for one in classed(page, "scroll") if one.get("role") == "region")
    levels = [int(one.tag[1]) for one in page.iter() if one.tag in ("h1", "h2", "h3", "h4")]
    assert levels.count(1) == 1
    assert levels[0] == 1


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, two: str) -> float:
    bright, dark = sorted((_luminance(one), _luminance(two)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_have_the_contrast_that_text_needs(summary: JsonObject, scheme: int) -> None:
    css = text(next(parsed(render({"solver": summary})).iter("style")))
    blocks = re.findall(r":root \{([^}]*)\}", css)
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", blocks[scheme]))

    for name in ("ink", "soft", "link", "one", "two", "three", "right", "wrong"):
        assert _contrast(colours[name], colours["page"]) >= 4.5, name
        assert _contrast(colours[name], colours["panel"]) >= 4.5, name
    assert _contrast(colours["warn"], colours["warn-page"]) >= 4.5
