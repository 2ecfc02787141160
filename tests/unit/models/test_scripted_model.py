import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest
from openai.types.responses import Response
from pydantic import ValidationError

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import answer_text
from rollmill.errors import ConfigError, InputError
from rollmill_services.models.scripted.app import create_app
from rollmill_services.models.scripted.model import Scripted
from rollmill_services.models.scripted.settings import ScriptedSettings


def tool(name: str, properties: JsonObject | None = None, *, required: list[str] | None = None) -> JsonObject:
    properties = properties or {}
    schema = {"type": "object", "properties": properties, "required": required or list(properties)}
    return {"type": "function", "name": name, "parameters": schema, "strict": False}


WEATHER = tool("get_weather", {"city": {"type": "string"}})
INCREMENT = tool("increment_counter", {"count": {"type": "integer"}})
READ = tool("get_counter_value")


def request(text: str, *tools: JsonObject, **fields: JsonValue) -> JsonObject:
    return {"input": [{"role": "user", "content": text}], "tools": list(tools), **fields}


def seeded(seed: int) -> JsonObject:
    return {"metadata": {"extra_body": json.dumps({"seed": seed})}}


def after(asked: JsonObject, response: JsonObject, outputs: Mapping[str, str]) -> JsonObject:
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    returned = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": outputs[call["name"]]} for call in calls
    ]
    return {**asked, "input": [*asked["input"], *response["output"], *returned]}


def calls(response: JsonObject) -> list[tuple[str, JsonObject]]:
    items = [item for item in response["output"] if item["type"] == "function_call"]
    return [(item["name"], json.loads(item["arguments"])) for item in items]


def write_tasks(path: Path, rows: list[JsonObject]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def task(text: str, expected: JsonValue, **fields: JsonValue) -> JsonObject:
    return {"responses_create_params": {"input": text}, "expected_answer": expected, **fields}


async def knowing(*paths: str, **settings: JsonValue) -> Scripted:
    model = Scripted(ScriptedSettings(answers=list(paths), **settings))
    await model.startup()
    return model


def boxed(response: JsonObject) -> str | None:
    found = re.search(r"\\boxed\{(.*)\}", answer_text(response))
    return found[1] if found else None


async def boxed_answers(model: Scripted, text: str, repeats: int) -> list[str | None]:
    return [boxed(await model.respond(request(text))) for _ in range(repeats)]


# --- without settings ------------------------------------------------------------------------------------------


async def test_it_calls_the_first_tool_and_then_quotes_what_the_tool_returned() -> None:
    model = Scripted()
    asked = request("How is the weather in Lisbon?", WEATHER, READ)

    first = await model.respond(asked)
    last = await model.respond(after(asked, first, {"get_weather": "sunny, 21 degrees"}))

    assert calls(first) == [("get_weather", {"city": "Lisbon"})]
    assert [item["type"] for item in last["output"]] == ["message"]
    assert "sunny, 21 degrees" in answer_text(last)


async def test_its_responses_are_what_the_openai_client_expects() -> None:
    model = Scripted()
    asked = request("How is the weather in Lisbon?", WEATHER, model="demo")

    first = await model.respond(asked)
    last = await model.respond(after(asked, first, {"get_weather": "sunny"}))

    for response in (first, last):
        parsed = Response.model_validate(response)
        assert parsed.model == "demo"
        assert parsed.status == "completed"
        assert parsed.usage is not None
        assert parsed.usage.input_tokens >= 1
        assert parsed.usage.total_tokens == parsed.usage.input_tokens + parsed.usage.output_tokens
    assert len({first["id"], last["id"]}) == 2


async def test_it_adds_every_number_in_one_turn_then_reads_the_counter_then_answers() -> None:
    model = Scripted()
    asked = request("Add 4, then add -7, then add 1,000, then tell me the count.", INCREMENT, READ)
    outputs = {"increment_counter": '{"success":true}', "get_counter_value": '{"count":997}'}

    first = await model.respond(asked)
    asked = after(asked, first, outputs)
    second = await model.respond(asked)
    last = await model.respond(after(asked, second, outputs))

    assert calls(first) == [("increment_counter", {"count": n}) for n in (4, -7, 1000)]
    assert len({item["call_id"] for item in first["output"]}) == 3
    assert calls(second) == [("get_counter_value", {})]
    assert calls(last) == []
    assert '{"count":997}' in answer_text(last)


async def test_one_number_is_one_call_and_no_reading_of_the_counter() -> None:
    model = Scripted()
    asked = request("Add 6, then tell me the count.", INCREMENT, READ)

    first = await model.respond(asked)
    last = await model.respond(after(asked, first, {"increment_counter": "done"}))

    assert calls(first) == [("increment_counter", {"count": 6})]
    assert calls(last) == []


async def test_a_counting_tool_without_a_number_in_the_message_changes_nothing() -> None:
    assert calls(await Scripted().respond(request("Tell me the count.", INCREMENT, READ))) == [
        ("increment_counter", {"count": 0})
    ]


async def test_several_numbers_do_not_multiply_a_tool_that_needs_more_than_one_integer() -> None:
    pair = tool("add", {"left": {"type": "integer"}, "right": {"type": "integer"}})

    assert calls(await Scripted().respond(request("What is 12 plus 30?", pair))) == [("add", {"left": 12, "right": 30})]


async def test_a_second_tool_with_required_parameters_is_not_called() -> None:
    model = Scripted()
    asked = request("Add 4 and 7.", INCREMENT, WEATHER)

    first = await model.respond(asked)
    last = await model.respond(after(asked, first, {"increment_counter": "done"}))

    assert len(calls(first)) == 2
    assert calls(last) == []


async def test_a_later_user_message_starts_a_new_turn() -> None:
    model = Scripted()
    asked = request("How is the weather in Lisbon?", WEATHER)
    asked = after(asked, await model.respond(asked), {"get_weather": "sunny"})
    asked["input"] = [*asked["input"], {"role": "user", "content": "And in Oslo?"}]

    assert calls(await model.respond(asked)) == [("get_weather", {"city": "Oslo"})]


@pytest.mark.parametrize(
    "unusable",
    [{"tool_choice": "none", "tools": [WEATHER]}, {"tools": []}, {"tools": None}, {"tools": [{"type": "web_search"}]}],
)
async def test_without_a_tool_it_may_call_it_answers_in_text(unusable: JsonObject) -> None:
    response = await Scripted().respond({"input": "Say hello.", **unusable})

    assert [item["type"] for item in response["output"]] == ["message"]
    assert "Say hello." in answer_text(response)


async def test_an_input_without_a_user_message_is_answered() -> None:
    assert answer_text(await Scripted().respond({"input": []}))


async def test_a_tool_output_of_parts_is_quoted_as_text() -> None:
    output = {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "in parts"}]}
    asked = {"input": [{"role": "user", "content": "Go."}, output], "tools": [WEATHER]}

    assert "in parts" in answer_text(await Scripted().respond(asked))


@pytest.mark.parametrize("wrong", [{}, {"input": 3}, {"input": ["text"]}])
async def test_a_malformed_input_is_an_input_error(wrong: JsonObject) -> None:
    with pytest.raises(InputError):
        await Scripted().respond(wrong)


# --- repeats and seeds -----------------------------------------------------------------------------------------


async def test_another_model_with_the_same_seed_repeats_the_same_answers(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", [task("two plus two", "4")])
    one, other = await knowing(path), await knowing(path)
    asked = request("two plus two")

    answers = [answer_text(await one.respond(asked)) for _ in range(20)]

    assert [answer_text(await other.respond(asked)) for _ in range(20)] == answers
    assert len(set(answers)) > 1


async def test_calls_of_another_model_with_the_same_seed_have_the_same_ids() -> None:
    asked = request("Weather, please.", WEATHER)
    one, other = Scripted(), Scripted()

    ids = [(await one.respond(asked))["output"][0]["call_id"] for _ in range(3)]

    assert [(await other.respond(asked))["output"][0]["call_id"] for _ in range(3)] == ids
    assert len(set(ids)) == 3


async def test_a_seed_in_the_request_fixes_the_answer(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("two plus two", "4")]))

    by_seed = [
        {answer_text(await model.respond(request("two plus two", **seeded(seed)))) for _ in range(3)}
        for seed in range(10)
    ]

    assert all(len(answers) == 1 for answers in by_seed)
    assert len(set().union(*by_seed)) > 1


async def test_seeded_requests_leave_the_turn_of_the_others_alone(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", [task("two plus two", "4")])
    quiet, busy = await knowing(path), await knowing(path)
    await busy.respond(request("two plus two", **seeded(1)))

    assert await boxed_answers(busy, "two plus two", 8) == await boxed_answers(quiet, "two plus two", 8)


async def test_a_top_level_seed_counts_too(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("two plus two", "4")]))

    inside = await model.respond(request("two plus two", **seeded(5)))

    assert answer_text(inside) == answer_text(await model.respond(request("two plus two", seed=5)))


async def test_another_seed_of_the_model_gives_other_answers(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", [task("two plus two", "4")])
    one, other = await knowing(path, seed=1), await knowing(path, seed=2)
    asked = request("two plus two")

    assert [answer_text(await one.respond(asked)) for _ in range(8)] != [
        answer_text(await other.respond(asked)) for _ in range(8)
    ]


async def test_a_malformed_extra_body_is_an_input_error() -> None:
    with pytest.raises(InputError, match="extra_body"):
        await Scripted().respond(request("Weather?", WEATHER, metadata={"extra_body": "{"}))


async def test_the_delay_holds_each_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    model = Scripted(ScriptedSettings(delay_seconds=1.5))
    await model.respond(request("Say hello."))
    await model.respond(request("Say hello."))

    assert waits == [1.5, 1.5]


# --- skill with tools ------------------------------------------------------------------------------------------


async def test_a_skill_of_zero_always_gets_a_number_wrong() -> None:
    model = Scripted(ScriptedSettings(skill=0.0))

    for _ in range(10):
        numbers = [arguments["count"] for _, arguments in calls(await model.respond(request("Add 4, 7.", INCREMENT)))]
        assert len(numbers) == 2
        assert sum(numbers) != 11


async def test_a_skill_of_zero_leaves_out_a_call_that_takes_no_number() -> None:
    response = await Scripted(ScriptedSettings(skill=0.0)).respond(request("Weather in Lisbon?", WEATHER))

    assert calls(response) == []
    assert answer_text(response)


async def test_a_skill_of_one_is_never_wrong_with_tools() -> None:
    model = Scripted(ScriptedSettings(skill=1.0))

    for _ in range(10):
        assert calls(await model.respond(request("Add 6.", INCREMENT))) == [("increment_counter", {"count": 6})]


async def test_a_middling_skill_is_sometimes_wrong_with_tools() -> None:
    model = Scripted(ScriptedSettings(skill=0.5))

    counts = [calls(await model.respond(request(f"Add {n}.", INCREMENT))) for n in range(1, 60)]
    right = sum(call == [("increment_counter", {"count": n})] for n, call in enumerate(counts, start=1))

    assert 10 < right < 50


# --- answers from task files -----------------------------------------------------------------------------------


async def test_full_skill_always_boxes_the_expected_answer(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("half", r"\frac{1}{2}")]), skill=1.0)

    assert set(await boxed_answers(model, "half", 10)) == {r"\frac{1}{2}"}


async def test_the_input_is_found_in_whatever_form_it_is_written(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("half", "0.5")]), skill=1.0)
    parts = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "half"}], "id": None}]

    assert boxed(await model.respond({"input": parts, "temperature": 1.0})) == "0.5"


async def test_without_skill_wrong_options_numbers_and_unknowns_are_plausible(tmp_path: Path) -> None:
    options = [{"A": "one"}, {"B": "two"}, {"C": "three"}]
    rows = [
        task("choose", "B", options=options),
        task("count", "42"),
        task("none", 0),
        task("long", "1,500,000"),
        task("small", "-0.25"),
        task("capital", "Lisbon"),
        task("who", "Unknown"),
    ]
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", rows), skill=0.0)
    answers = {row["responses_create_params"]["input"]: set[str | None]() for row in rows}
    for text, found in answers.items():
        found.update(await boxed_answers(model, text, 60))

    assert answers["choose"] == {"A", "C", None}
    assert all(abs(float(n) - 42) >= 10 for n in answers["count"] if n)
    assert all(float(n) != 0 for n in answers["none"] if n)
    assert all(abs(float(n) - 1_500_000) >= 1_000_000 for n in answers["long"] if n)
    assert all(abs(float(n) + 0.25) > 0.09 for n in answers["small"] if n)
    assert answers["capital"] - {None} == {"unknown"}
    assert answers["who"] - {None} == {"nothing"}


async def test_some_wrong_answers_box_nothing(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("capital", "Lisbon")]), skill=0.0)
    answers = await boxed_answers(model, "capital", 1000)

    assert 20 <= answers.count(None) <= 90


async def test_wrong_answers_are_longer(tmp_path: Path) -> None:
    path = write_tasks(tmp_path / "tasks.jsonl", [task("capital", "Lisbon")])
    right, wrong = await knowing(path, skill=1.0), await knowing(path, skill=0.0)

    async def tokens(model: Scripted) -> list[int]:
        return [(await model.respond(request("capital")))["usage"]["output_tokens"] for _ in range(100)]

    of_right, of_wrong = await tokens(right), await tokens(wrong)

    assert sum(of_wrong) > 1.5 * sum(of_right)
    assert len(set(of_right)) > 3


async def test_the_result_is_the_last_line_or_all_of_it_where_the_whole_response_is_graded(tmp_path: Path) -> None:
    rows = [task("line", "level"), task("all", "level", extraction_mode="full_response")]
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", rows), skill=1.0)

    assert answer_text(await model.respond(request("line"))).endswith("\n\\boxed{level}")
    assert answer_text(await model.respond(request("all"))) == "\\boxed{level}"


async def test_tasks_differ_in_difficulty_around_the_mean(tmp_path: Path) -> None:
    names = [f"task {n}" for n in range(60)]
    path = write_tasks(tmp_path / "tasks.jsonl", [task(name, "yes") for name in names])
    model = await knowing(path)

    shares = [(await boxed_answers(model, name, 16)).count("yes") / 16 for name in names]

    assert 0.5 < sum(shares) / len(shares) < 0.7
    assert min(shares) < 0.35
    assert max(shares) > 0.85


async def test_an_input_that_is_in_no_file_is_played_as_without_answers(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("half", "0.5")]))

    assert calls(await model.respond(request("Weather in Lisbon?", WEATHER))) == [("get_weather", {"city": "Lisbon"})]


async def test_known_answers_are_given_without_calling_a_tool(tmp_path: Path) -> None:
    model = await knowing(write_tasks(tmp_path / "tasks.jsonl", [task("half", "0.5")]), skill=1.0)

    response = await model.respond(request("half", WEATHER))

    assert calls(response) == []
    assert boxed(response) == "0.5"


async def test_scripted_answers_are_given_as_they_are(tmp_path: Path) -> None:
    texts = {"right": ["yes, **so**"], "wrong": ["no", "never"]}
    path = write_tasks(tmp_path / "tasks.jsonl", [task("q", "boxed otherwise", scripted_answers=texts)])

    right, wrong = await knowing(path, skill=1.0), await knowing(path, skill=0.0)

    assert {answer_text(await right.respond(request("q"))) for _ in range(20)} == {"yes, **so**"}
    assert {answer_text(await wrong.respond(request("q"))) for _ in range(20)} == {"no", "never"}


async def test_scripted_steps_are_taken_one_a_turn(tmp_path: Path) -> None:
    look, other = {"call": "look", "arguments": {"at": 1}}, {"call": "look", "arguments": {"at": 2}}
    steps = {"right": [[look, other, "both seen"]], "wrong": [[look, "one seen"]]}
    path = write_tasks(tmp_path / "tasks.jsonl", [task("q", None, scripted_answers=steps)])
    right, wrong = await knowing(path, skill=1.0), await knowing(path, skill=0.0)

    assert await turns(right, "q") == ['look{"at":1}', 'look{"at":2}', "both seen"]
    assert await turns(wrong, "q") == ['look{"at":1}', "one seen"]


async def turns(model: Scripted, question: str) -> list[str]:
    """Answer every call with null until the model says something; return what it did."""
    items: list[JsonObject] = [{"type": "message", "role": "user", "content": question}]
    done: list[str] = []
    while True:
        response = await model.respond({"input": items})
        [item] = response["output"]
        if item["type"] == "message":
            return [*done, answer_text(response)]
        done.append(item["name"] + item["arguments"])
        items += [item, {"type": "function_call_output", "call_id": item["call_id"], "output": "null"}]


async def test_several_files_nested_fields_and_lists_of_answers_are_read(tmp_path: Path) -> None:
    nested = {"responses_create_params": {"input": "nested"}, "verifier_metadata": {"expected_answer": "deep"}}
    one = write_tasks(tmp_path / "one.jsonl", [nested, {"responses_create_params": {"input": "no answer"}}])
    two = write_tasks(tmp_path / "two.jsonl", [task("list", ["first", "second"]), task("nested", "too late")])
    model = await knowing(one, two, skill=1.0)

    assert await boxed_answers(model, "nested", 1) == ["deep"]
    assert await boxed_answers(model, "list", 1) == ["first"]
    assert await boxed_answers(model, "no answer", 1) == [None]


GOOD = json.dumps(task("half", "0.5"))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (f"{GOOD}\n\n{{torn", ":3: "),
        (f"{GOOD}\n[1]\n", ":2: "),
        ('{"expected_answer": "1"}\n', ":1: the row has no responses_create_params.input"),
        ('{"responses_create_params": {"input": 3}, "expected_answer": "1"}\n', ":1: "),
        ('{"responses_create_params": {"input": "x"}}\n', ": no task has an `expected_answer`"),
        ("", ": no task has an `expected_answer`"),
        (
            '{"responses_create_params": {"input": "x"}, "scripted_answers": {"right": ["a"], "wrong": []}}',
            ":1: `scripted_answers.wrong` must be a list of at least one text",
        ),
        (
            '{"responses_create_params": {"input": "x"}, "scripted_answers": {"right": [["a", "b"]], "wrong": ["a"]}}',
            ":1: `scripted_answers.right` must be a list of at least one text",
        ),
    ],
)
async def test_a_wrong_answers_file_is_a_config_error_with_its_place(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=re.escape(f"{path}{where}")):
        await knowing(str(path))


async def test_a_missing_answers_file_is_a_config_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl"):
        await knowing(str(tmp_path / "absent.jsonl"))


@pytest.mark.parametrize("wrong", [{"skill": 1.1}, {"skill": -0.1}, {"delay_seconds": -1}, {"answer": []}])
def test_settings_out_of_range_or_unknown_are_refused(wrong: JsonObject) -> None:
    with pytest.raises(ValidationError):
        ScriptedSettings(**wrong)


# --- over HTTP -------------------------------------------------------------------------------------------------


async def test_the_service_answers_both_dialects_with_the_same_tool_call() -> None:
    app = create_app(ScriptedSettings())
    chat_tool = {"type": "function", "function": {key: WEATHER[key] for key in ("name", "parameters")}}
    question = [{"role": "user", "content": "Weather in Lisbon?"}]
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://model") as client,
    ):
        response = await client.post("/v1/responses", json={"input": question, "tools": [WEATHER]})
        chat = await client.post("/v1/chat/completions", json={"messages": question, "tools": [chat_tool]})

    assert calls(response.json()) == [("get_weather", {"city": "Lisbon"})]
    function = chat.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("get_weather", {"city": "Lisbon"})


def test_the_factory_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_SKILL", "2")

    with pytest.raises(ConfigError, match="skill"):
        create_app()
