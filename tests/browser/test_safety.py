"""What models wrote never acts; what is broken or gone is named, and the rest goes on."""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, Page, expect

from rollmill.artifacts.columns import update_column_file
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.contracts.json import JsonObject, JsonValue, dumps

if TYPE_CHECKING:
    from tests.browser.conftest import Suite

SCRIPT = (
    "<script>window.struck = 'script'</script><img src=x onerror=\"window.struck='img'\"><svg onload=window.struck=1>"
)
LINKS = "[press](javascript:window.struck='link') <a href=\"javascript:window.struck='a'\">press</a>"
ANSI = "\x1b[31mred\x1b]0;title\x07\x1b[2J\x00\x9b1m"
BIDI = "user\u202e\u2066nimda\u2069 مرحبا بالعالم 👩‍👩‍👧‍👦 e\u0301 zero\u200bwidth \ufeff"


def rollout(task: int, repeat: int, reward: float, items: list[JsonValue], **fields: JsonValue) -> JsonObject:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": repeat,
        "agent_ref": {"name": SCRIPT if task == 1 else "weather_agent"},
        "responses_create_params": {"input": [{"role": "user", "content": SCRIPT + LINKS}]},
        "response": {"output": items, "usage": {"output_tokens": 10}},
        "reward": reward,
        **fields,
    }


def message(text: str) -> JsonObject:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def call(arguments: JsonValue) -> JsonObject:
    return {"type": "function_call", "name": SCRIPT, "arguments": arguments, "call_id": "c"}


HOSTILE = [
    rollout(0, 0, 0.0, [message(SCRIPT), message(LINKS), {"type": SCRIPT, "x": SCRIPT}], **{SCRIPT: SCRIPT}),
    rollout(1, 0, 1.0, [message("x")]),
    rollout(2, 0, 0.0, [message(ANSI), message(BIDI)], **{"name\u202e\x1b[31m": BIDI}),
    rollout(3, 0, 0.0, [message("long " * 1_000_000)]),
    rollout(
        4,
        0,
        0.0,
        [
            call('{"broken": '),
            call({"not": "text"}),
            call(None),
            5,
            None,
            "text",
            [[]],
            {"role": 7, "content": {"a": 1}},
        ],
    ),
    {
        **rollout(5, 0, 0.0, []),
        "response": "no object",
        "responses_create_params": 3,
        "_rollmill": "x",
        "reward_components": None,
    },
]


def write_run(folder: Path, lines: list[bytes], run_id: str) -> RunFiles:
    files = RunFiles(folder / run_id / "rollouts.jsonl")
    files.rollouts.parent.mkdir(parents=True)
    files.rollouts.write_bytes(b"".join(line + b"\n" for line in lines))
    counts = Counts(expected=len(lines), completed=len(lines))
    Manifest(run_id=run_id, state="finished", counts=counts, digests=Digests(input="", overrides="")).write(
        files.manifest
    )
    return files


@pytest.fixture(scope="module")
def hostile(suite: "Suite") -> "Suite":
    write_run(suite.data_dir, [dumps(row) for row in HOSTILE], "hostile")
    return suite


def struck(page: Page) -> object:
    return page.evaluate("window.struck")


def visit(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)


def test_markup_and_links_of_a_rollout_are_only_text(page: Page, hostile: "Suite") -> None:
    visit(page, "/ui/runs/hostile/rollouts/0/0")

    expect(page.locator(".turn").first).to_contain_text("<script>window.struck = 'script'</script>")
    expect(page.locator(".turn.assistant").nth(1)).to_contain_text("javascript:window.struck='link'")
    assert page.locator("main script, main img, main svg, main a[href^='javascript']").count() == 0
    for address in (
        "/ui/runs/hostile/rollouts",
        "/ui/runs/hostile/rollouts/1/0",
        "/ui/runs/hostile/tasks/0",
        "/ui/runs/hostile/profile",
        "/ui/runs/hostile",
    ):
        visit(page, address)
        page.wait_for_timeout(300)
        assert struck(page) is None


def test_control_and_direction_characters_are_shown_and_do_nothing(page: Page, hostile: "Suite") -> None:
    visit(page, "/ui/runs/hostile/rollouts/2/0")

    turns = page.locator(".turn.assistant")
    expect(turns.first).to_contain_text("␛[31mred␛]0;title␇␛[2J␀U+009B1m")
    expect(turns.nth(1)).to_contain_text(
        "userU+202EU+2066nimdaU+2069 مرحبا بالعالم 👩‍👩‍👧‍👦 é zeroU+200Bwidth U+FEFF".replace("é", "e\u0301")
    )
    shown = page.locator("main").inner_text()
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x00]", shown)
    assert page.title() == "Rollout 2:0 of hostile · Rollmill"


def test_a_message_of_5_mb_is_shown_in_parts(page: Page, hostile: "Suite") -> None:
    visit(page, "/ui/runs/hostile/rollouts/3/0")

    expect(page.get_by_text("4,980,000 of 5,000,000 characters are not shown.")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(page.get_by_text("4,780,000 of 5,000,000 characters are not shown.")).to_be_visible()


def test_items_and_rows_of_any_shape_are_shown(page: Page, hostile: "Suite") -> None:
    visit(page, "/ui/runs/hostile/rollouts/4/0")
    expect(page.locator(".turn")).to_have_count(9)
    expect(page.get_by_text("the arguments are not valid JSON")).to_have_count(1)
    expect(page.get_by_text('{"broken":')).to_be_visible()

    visit(page, "/ui/runs/hostile/rollouts/5/0")
    expect(page.get_by_text("There is no conversation in this rollout.")).to_be_visible()


def test_a_copied_command_is_plain_ascii_and_cannot_be_broken_out_of(page: Page, hostile: "Suite") -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for task in (0, 2):
        visit(page, f"/ui/runs/hostile/rollouts/{task}/0")
        page.get_by_role("button", name="Copy as curl").click()
        expect(page.get_by_text("Copied as curl.")).to_be_visible()
        command = page.evaluate("navigator.clipboard.readText()")
        assert re.fullmatch(r"[\x20-\x7e\n]*", command)
        said = hostile.arguments(command)
        assert said[:2] == ["-s", f"http://127.0.0.1:{hostile.port('weather_agent')}/run"]
        assert (
            json.loads(said[-1]).items()
            >= {"responses_create_params": HOSTILE[task]["responses_create_params"]}.items()
        )


def test_copied_json_holds_nothing_that_acts_where_it_is_pasted(page: Page, hostile: "Suite") -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit(page, "/ui/runs/hostile/rollouts/2/0")
    page.get_by_role("button", name="Copy as JSON").click()
    expect(page.get_by_text("Copied as JSON.")).to_be_visible()
    text = page.evaluate("navigator.clipboard.readText()")

    assert re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text) is None
    assert json.loads(text) == HOSTILE[2]


@pytest.mark.parametrize(
    "address",
    [
        "/ui/runs/nope",
        "/ui/runs/nope/rollouts",
        "/ui/runs/hostile/rollouts/99/0",
        "/ui/runs/hostile/rollouts/x/y",
        "/ui/nothing",
        "/ui/runs/%2e%2e/x",
        "/ui/runs/hostile/tasks/77",
    ],
)
def test_what_is_not_there_says_so_and_leads_back(page: Page, hostile: "Suite", address: str) -> None:
    page.goto(address)

    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.locator("main").get_by_role("link", name=re.compile("^All |^Runs")).first.click()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_damaged_run_is_named_and_the_others_are_listed(page: Page, hostile: "Suite") -> None:
    write_run(hostile.data_dir, [dumps(HOSTILE[0]), b"PK\x03\x04 this is a zip file"], "foreign")
    torn = write_run(hostile.data_dir, [dumps(rollout(0, 0, 1.0, [message("fine")]))], "torn")
    with torn.rollouts.open("ab") as file:
        file.write(b'{"_ng_task_index": 1, "resp')
    shutil.copy(torn.rollouts, hostile.data_dir / "stray.jsonl")
    (hostile.data_dir / "unreadable").mkdir()
    (hostile.data_dir / "unreadable" / "rollouts_manifest.json").write_text("{")

    visit(page, "/ui/runs")
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="foreign")).to_be_visible()
    visit(page, "/ui/runs/foreign/rollouts")
    expect(page.get_by_role("alert")).to_contain_text("rollouts.jsonl:2")
    visit(page, "/ui/runs/torn/rollouts")
    expect(page.get_by_text("1 rollouts")).to_be_visible()


def test_a_profiler_that_is_down_leaves_the_rest_at_work(page: Page, hostile: "Suite") -> None:
    with hostile.without("profiler"):
        page.goto("/ui/runs/hostile")
        expect(page.get_by_role("alert")).to_contain_text("The profiler")
        expect(page.get_by_text("finished", exact=True)).to_be_visible()
        page.goto("/ui/runs/hostile/rollouts")
        expect(page.get_by_role("alert")).to_contain_text("The rollouts")

    page.get_by_role("button", name="Try again").click()
    expect(page.get_by_text("6 rollouts")).to_be_visible()


def test_a_collector_that_is_down_is_named_and_comes_back(page: Page, hostile: "Suite") -> None:
    with hostile.without("collector"):
        page.goto("/ui/runs/hostile/rollouts/1/0")
        expect(page.locator(".turn")).to_have_count(2)
        page.goto("/ui/runs")
        expect(page.get_by_role("alert")).to_contain_text("The collector")

    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_lost_connection_is_told_and_what_was_seen_stays(page: Page, hostile: "Suite") -> None:
    page.goto("/ui/runs")
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()

    page.context.set_offline(True)
    expect(page.get_by_role("alert")).to_contain_text("The head does not answer")
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()

    page.context.set_offline(False)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_wrong_token_is_refused_and_the_right_one_goes_on(fresh: Page, hostile: "Suite") -> None:
    fresh.goto("/ui/runs/hostile/rollouts")
    hostile.log_in(fresh, "wrong")
    expect(fresh.get_by_role("alert")).to_contain_text("not the token")
    hostile.log_in(fresh)
    expect(fresh.get_by_text("6 rollouts")).to_be_visible()
    assert fresh.evaluate("document.cookie") == ""
    assert fresh.evaluate("JSON.stringify([localStorage, sessionStorage])") == "[{},{}]"


def test_a_session_that_ended_leads_to_the_login_and_back(page: Page, hostile: "Suite") -> None:
    page.goto("/ui/runs")
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()
    page.context.clear_cookies()

    expect(page.get_by_text("Your session has ended")).to_be_visible()
    hostile.log_in(page)
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_another_site_can_neither_read_nor_act_nor_frame(page: Page, hostile: "Suite", browser: Browser) -> None:
    other = page.context.new_page()
    other.route(
        "http://other.example/", lambda route: route.fulfill(body="<iframe></iframe>", content_type="text/html")
    )
    other.goto("http://other.example/")
    tried = other.evaluate(
        """async (url) => {
          const told = [];
          const tries = [["/api/collector/v1/runs", "GET", "cors"], ["/api/collector/v1/runs/hostile/cancel", "POST", "cors"],
            ["/login", "POST", "cors"], ["/logout", "POST", "no-cors"]];
          for (const [path, method, mode] of tries) {
            try { await (await fetch(url + path, { method, mode, credentials: "include" })).text(); told.push("read"); }
            catch { told.push("refused"); }
          }
          return told;
        }""",
        hostile.url,
    )
    assert tried == ["refused"] * 4
    page.goto("/ui/runs")
    expect(page.get_by_role("link", name="hostile", exact=True)).to_be_visible()  # still logged in


def test_100_000_rollouts_are_scrolled_sorted_and_filtered(page: Page, hostile: "Suite") -> None:
    one = (
        dumps(rollout(0, 0, 0.0, [message("x")]))
        .replace(b'index":0', b'index":%d')
        .replace(b'"reward":0.0', b'"reward":%d')
    )
    lines = [one % (number // 10, number % 10, number % 3 == 0) for number in range(100_000)]
    update_column_file(write_run(hostile.data_dir, lines, "large"), processes=1)
    page.goto("/ui/runs/large/rollouts")
    expect(page.get_by_text("100,000 rollouts")).to_be_visible()
    grid = page.get_by_role("grid")
    assert page.locator(".grid-row").count() < 100

    grid.evaluate("box => { box.scrollTop = box.scrollHeight / 2; }")
    expect(page.locator("#row-50000")).to_contain_text("5000")
    grid.focus()
    page.keyboard.press("End")
    expect(page.locator("#row-99999")).to_contain_text("9999")
    page.get_by_role("button", name="Reward").click()
    expect(page.get_by_role("columnheader", name="Reward")).to_have_attribute("aria-sort", "ascending")
    page.get_by_label("Filter", exact=True).fill("reward == 1 and task >= 9990")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_text("34 rollouts found")).to_be_visible()
