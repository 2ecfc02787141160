"""Each view of the page, with the data of real collections."""

import json
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, expect

if TYPE_CHECKING:
    from tests.browser.conftest import Suite


@pytest.fixture(scope="module")
def finished(suite: "Suite") -> "Suite":
    """Two finished runs of the same tasks, and one over all agents."""
    suite.run("first", input="mcqa.jsonl", num_repeats=4)
    suite.run("second", input="mcqa.jsonl", num_repeats=4, temperature=0.5)
    suite.run("sunny", input="weather.jsonl", num_repeats=2)
    return suite


def test_services_show_what_is_live_and_lose_what_is_gone(page: Page, suite: "Suite") -> None:
    page.get_by_role("link", name="Services").click()
    row = page.get_by_role("row", name=re.compile("^weather_agent"))
    expect(row).to_contain_text("ready")
    expect(row).to_contain_text(re.compile(r"\d+\.\d ms"))

    suite.stop("weather_agent")

    expect(row).to_have_count(0)
    suite.start("weather_agent", model="policy", resources="weather")
    expect(row).to_contain_text("ready")


def test_runs_are_listed_with_their_rewards(page: Page, finished: "Suite") -> None:
    row = page.get_by_role("row", name=re.compile("^first"))

    expect(row).to_contain_text("finished")
    expect(row).to_contain_text("96 of 96")
    expect(row).to_contain_text(re.compile(r"0\.\d{3} \[0\.\d{3}, [01]\.\d{3}\]"))


def test_a_run_shows_its_agents_and_rewards_over_time(page: Page, finished: "Suite") -> None:
    page.get_by_role("link", name="sunny").click()

    expect(page.get_by_role("heading", name="sunny")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^weather_agent"))).to_contain_text("20")
    expect(page.get_by_role("img", name=re.compile("^Mean reward of"))).to_be_visible()
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)


def test_a_live_run_moves_and_is_paused_resumed_slowed_and_cancelled(page: Page, suite: "Suite") -> None:
    page.get_by_role("link", name="Start a run").click()
    page.get_by_label("Path inside the data directory").fill("weather.jsonl")
    page.get_by_label("A file of the data directory").focus()
    page.get_by_label("Pasted rows").check()
    page.get_by_label("One JSON object a line").fill(
        json.dumps(
            {"responses_create_params": {"input": "What is the weather in Paris?"}, "expected_tool": "get_weather"}
        )
    )
    page.get_by_label("Agent of the rows that name none").select_option("slow_agent")
    page.get_by_label("Repeats of each task").fill("2000")
    page.get_by_label("Concurrency").fill("4")
    page.get_by_label("Run id").fill("live")
    page.get_by_role("button", name="Start the run").click()

    expect(page.get_by_role("heading", name="live")).to_be_visible()
    expect(page.get_by_text("running")).to_be_visible()
    progress = page.get_by_role("progressbar", name="Progress of the run")
    expect(progress).to_be_visible()
    page.wait_for_function("() => Number(document.querySelector('.stat dd').textContent.split('of')[0]) > 3")

    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Leave it").click()
    assert suite.state("live") == "running"
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused")).to_be_visible()
    assert suite.state("live") == "paused"

    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("running")).to_be_visible()
    page.get_by_role("button", name="Concurrency").click()
    page.get_by_label("Most rollouts in flight").fill("9")
    page.get_by_role("dialog").get_by_role("button", name="Change").click()
    suite.wait(lambda: suite.ask("collector", "GET", "/v1/runs/live")["concurrency"] == 9)

    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    expect(page.get_by_text("cancelled")).to_be_visible()
    assert suite.state("live") == "cancelled"


def test_a_wrong_run_request_says_what_is_wrong(page: Page, suite: "Suite") -> None:
    page.goto("/ui/start")
    page.get_by_label("Path inside the data directory").fill("../../etc/passwd")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert")).to_contain_text("is not inside the data directory")

    page.get_by_label("Pasted rows").check()
    page.get_by_label("One JSON object a line").fill('{"responses_create_params": {}}\n{broken')
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert")).to_contain_text("Line 2")


def test_rollouts_are_filtered_sorted_and_searched_and_the_address_tells(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/rollouts")
    expect(page.get_by_text("96 rollouts")).to_be_visible()

    page.get_by_label("Filter", exact=True).fill("reward < 1")
    page.get_by_label("Text", exact=True).fill("planet")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text(re.compile(r"\d+ rollouts found"))).to_be_visible()
    page.get_by_role("button", name="Tokens").click()
    expect(page.get_by_role("columnheader", name="Tokens")).to_have_attribute("aria-sort", "ascending")

    shared = page.url
    assert "sort=output_tokens" in shared
    assert "q=planet" in shared
    found = page.get_by_text(re.compile(r"\d+ rollouts found")).inner_text()
    page.goto("about:blank")
    page.goto(shared)
    expect(page.get_by_text(found)).to_be_visible()
    expect(page.get_by_label("Filter", exact=True)).to_have_value("reward < 1")


def test_a_wrong_filter_is_explained_and_leads_back(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/rollouts?filter=rewrd+%3C+1")

    expect(page.get_by_role("alert")).to_contain_text("rewrd")
    page.get_by_role("link", name="All rollouts of this run").click()
    expect(page.get_by_text("96 rollouts")).to_be_visible()


def test_the_table_is_walked_through_with_the_keyboard(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/rollouts?sort=task")
    grid = page.get_by_role("grid")
    expect(grid.get_by_role("row").nth(3)).to_be_visible()
    grid.focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowUp")
    expect(grid).to_have_attribute("aria-activedescendant", "row-94")
    expect(page.locator("#row-94")).to_contain_text("23")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", name=re.compile("^Task 23, repeat"))).to_be_visible()


def test_a_rollout_reads_as_a_conversation(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/sunny/rollouts/0/0")

    turns = page.locator(".turn")
    expect(turns.first.get_by_role("heading")).to_have_text("user")
    expect(page.locator(".turn.call")).to_contain_text("get_weather")
    expect(page.locator(".turn.call")).to_contain_text('"city"')
    expect(page.locator(".turn.output").first).to_be_visible()
    expect(page.get_by_text("Reward", exact=True).locator("xpath=following-sibling::dd")).to_have_text("1.000")
    expect(
        page.get_by_role("navigation", name="Repeats of task 0").get_by_role("link", name="0: 1.00")
    ).to_have_attribute("aria-current", "page")


def test_the_repeats_of_a_task_stand_side_by_side(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/rollouts/3/0")
    page.get_by_role("link", name="Side by side").click()

    expect(page.get_by_role("article")).to_have_count(4)
    expect(page.locator("article .turn.assistant")).to_have_count(4)


def test_a_rollout_is_copied_as_json_and_as_a_command_that_runs_it_again(page: Page, finished: "Suite") -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/ui/runs/sunny/rollouts/0/0")
    page.get_by_role("button", name="Copy as JSON").click()
    expect(page.get_by_text("Copied as JSON.")).to_be_visible()
    row = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert row == finished.ask("profiler", "GET", "/v1/runs/sunny/rollouts/0/0")["row"]

    page.get_by_role("button", name="Copy as curl").click()
    expect(page.get_by_text("Copied as curl.")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    again = finished.curl(command)
    assert again["reward"] == 1.0
    assert again["_ng_task_index"] == 0


def test_the_profile_draws_the_report_and_its_points_lead_to_rollouts(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/profile")
    for name in ("Solve rate", "pass@k and pass^k", "Hardest tasks"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    expect(page.locator(".chart canvas").first).to_be_visible()
    expect(page.get_by_text("Zero variance")).to_be_visible()

    page.get_by_text("The numbers").first.click()
    page.get_by_role("region", name="Numbers of Solve rate").get_by_role("link", name="all").click()
    expect(page).to_have_url(re.compile("pass_rate"))
    expect(page.get_by_text(re.compile(r"\d+ rollouts found"))).to_be_visible()


def test_a_bar_of_the_profile_can_be_clicked(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/profile")
    drawn = page.locator("figure", has=page.get_by_role("heading", name="Solve rate")).locator(".u-over")
    drawn.click(position={"x": 20, "y": 60})

    expect(page).to_have_url(re.compile(r"filter=.*pass_rate"))


def test_a_profile_is_saved_as_table_and_picture(page: Page, finished: "Suite") -> None:
    page.goto("/ui/runs/first/profile")
    expect(page.locator(".chart canvas").first).to_be_visible()
    for name, start in (
        ("Tasks, CSV", b"_ng_task_index"),
        ("Estimates, Parquet", b"PAR1"),
        ("Report", b"<!doctype html>"),
    ):
        with page.expect_download() as download:
            page.get_by_role("link", name=name).click()
        assert download.value.path().read_bytes()[:200].lower().startswith(start.lower())
    with page.expect_download() as picture:
        page.get_by_role("button", name="Save Solve rate as PNG").click()
    assert picture.value.suggested_filename == "first-solve-rate.png"
    assert picture.value.path().read_bytes().startswith(b"\x89PNG")


def test_from_a_fallen_mean_to_its_rollouts_in_three_clicks(page: Page, finished: "Suite") -> None:
    page.get_by_role("link", name="compare with first").click()
    expect(page.get_by_text("B minus A")).to_be_visible()
    page.get_by_role("link", name="in B").first.click()  # the task that moved most
    page.get_by_role("link", name=re.compile("^Repeat")).first.click()

    expect(page.get_by_role("heading", name="Conversation")).to_be_visible()


def test_runs_of_other_tasks_are_compared_only_when_that_is_wanted(page: Page, finished: "Suite") -> None:
    page.get_by_role("link", name="Compare", exact=True).click()
    page.get_by_label("Run A").select_option("first")
    page.get_by_label("Run B, beside it").select_option("sunny")
    page.get_by_role("button", name="Compare").click()

    expect(page.get_by_role("alert")).to_contain_text("differ")
    expect(page.get_by_role("link", name="Compare them all the same")).to_be_visible()
