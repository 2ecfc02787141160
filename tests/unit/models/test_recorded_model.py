import json
import re
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response
from pydantic import ValidationError

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import answer_text
from rollmill.errors import ConfigError, InputError, RecordingNotFoundError
from rollmill.openai import chat_request_to_responses, response_to_chat_completion
from rollmill_services.models.recorded.app import create_app
from rollmill_services.models.recorded.model import Recorded
from rollmill_services.models.recorded.settings import RecordedSettings


def user(text: str) -> JsonObject:
    return {"role": "user", "content": text}


def said(text: str, identity: str = "") -> JsonObject:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "role": "assistant", "content": content, "status": "completed"}
    return {"id": identity, **item} if identity else item


def call(call_id: str, arguments: str = "{}", name: str = "look") -> JsonObject:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def returned(call_id: str, output: str = "recorded output") -> JsonObject:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def thought(identity: str) -> JsonObject:
    return {"type": "reasoning", "id": identity, "summary": [{"type": "summary_text", "text": "hm"}]}


def rollout(task_input: JsonValue, *output: JsonObject, **response: JsonValue) -> JsonObject:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    return {
        "responses_create_params": {"input": task_input},
        "response": {"model": "recorded-1", "status": "completed", "usage": usage, "output": list(output), **response},
        "reward": 1.0,
    }


async def replaying(folder: Path, *rows: JsonObject, loop: bool = True) -> Recorded:
    path = folder / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    model = Recorded(RecordedSettings(rollouts=[str(path)], loop=loop))
    await model.startup()
    return model


async def answer(model: Recorded, *items: JsonObject) -> list[JsonObject]:
    output: list[JsonObject] = (await model.respond({"input": list(items)}))["output"]
    return output


TWO_STEPS = rollout(
    "look twice", thought("r1"), call("a"), call("b"), returned("a"), returned("b"), call("c"), returned("c"), said("x")
)


async def test_a_recording_is_replayed_step_by_step_through_its_tool_calls(tmp_path: Path) -> None:
    model = await replaying(tmp_path, TWO_STEPS)
    start = user("look twice")

    first = await answer(model, start)
    second = await answer(model, start, *first, returned("a", "other"), returned("b", "outputs"))
    last = await answer(model, start, *first, returned("a"), returned("b"), *second, returned("c"))

    assert first == [thought("r1"), call("a"), call("b")]
    assert second == [call("c")]
    assert last == [said("x")]


async def test_it_makes_no_difference_which_replica_answers_a_later_step(tmp_path: Path) -> None:
    one, other = await replaying(tmp_path, TWO_STEPS), await replaying(tmp_path, TWO_STEPS)
    start = user("look twice")

    first = await answer(one, start)

    assert await answer(other, start, *first, returned("a"), returned("b")) == [call("c")]


async def test_usage_and_the_end_of_the_recording_stand_on_the_last_step_only(tmp_path: Path) -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
    model = await replaying(tmp_path, rollout("go", call("a"), returned("a"), said("cut of", "m1"), **cut))

    first = await model.respond({"input": "go", "model": "asked-for"})
    last = await model.respond({"input": [user("go"), *first["output"], returned("a")]})

    assert (first["model"], first["status"], first["usage"], first["incomplete_details"]) == (
        "recorded-1",
        "completed",
        None,
        None,
    )
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "content_filter"})
    assert last["usage"]["total_tokens"] == 15
    for response in (first, last):
        Response.model_validate(response)


async def test_recordings_of_one_input_are_served_in_turn_and_again_from_the_first(tmp_path: Path) -> None:
    model = await replaying(tmp_path, *(rollout("go", said(text)) for text in "abc"))

    texts = [answer_text(await model.respond({"input": "go"})) for _ in range(7)]

    assert "".join(texts) == "abcabca"


async def test_without_looping_the_turns_end_with_a_clear_error(tmp_path: Path) -> None:
    model = await replaying(tmp_path, *(rollout("go", said(text)) for text in "ab"), loop=False)
    texts = [answer_text(await model.respond({"input": "go"})) for _ in range(2)]

    with pytest.raises(RecordingNotFoundError, match="all 2 recordings of this input were served"):
        await model.respond({"input": "go"})
    assert "".join(texts) == "ab"


async def test_later_steps_take_no_turn(tmp_path: Path) -> None:
    rows = [rollout("go", call(f"{n}"), returned(f"{n}"), said(f"end {n}")) for n in range(2)]
    model = await replaying(tmp_path, *rows)

    for turn in (0, 1, 0):
        first = await answer(model, user("go"))
        last = await answer(model, user("go"), *first, returned(f"{turn}"))
        assert (first, last) == ([call(f"{turn}")], [said(f"end {turn}")])


async def test_interleaved_rollouts_of_one_input_each_follow_their_own_recording(tmp_path: Path) -> None:
    rows = [rollout("go", call(f"{n}"), returned(f"{n}"), said(f"end {n}")) for n in range(3)]
    model = await replaying(tmp_path, *rows)

    firsts = [await answer(model, user("go")) for _ in range(3)]
    lasts = [await answer(model, user("go"), *first, returned("any")) for first in reversed(firsts)]

    assert lasts == [[said(f"end {n}")] for n in (2, 1, 0)]


async def test_calls_with_equal_ids_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    rows = [rollout("go", call("0", f'{{"n": {n}}}'), returned("0"), said(f"end {n}")) for n in range(3)]
    model = await replaying(tmp_path, *rows)

    assert await answer(model, user("go"), call("0", '{"n": 1}'), returned("0")) == [said("end 1")]


async def test_equal_messages_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    rows = [rollout("go", said("hello", f"msg_{n}"), user("?"), said(f"end {n}")) for n in range(3)]
    model = await replaying(tmp_path, *rows)

    assert await answer(model, user("go"), said("hello", "msg_2"), user("other words")) == [said("end 2")]
    assert await answer(model, user("go"), said("hello"), user("other words")) == [said("end 0")]


async def test_an_agent_with_call_ids_of_its_own_is_followed_by_what_it_calls(tmp_path: Path) -> None:
    rows = [rollout("go", call("0", f'{{"n": {n}}}'), returned("0"), said(f"end {n}")) for n in range(3)]
    model = await replaying(tmp_path, *rows)

    assert await answer(model, user("go"), call("mine", '{"n":2}'), returned("mine")) == [said("end 2")]


async def test_an_agent_may_leave_out_reasoning_and_the_text_beside_calls(tmp_path: Path) -> None:
    model = await replaying(
        tmp_path, rollout("go", thought("r"), said("Let me look."), call("a"), returned("a"), said("end"))
    )

    assert await answer(model, user("go"), call("a"), returned("a")) == [said("end")]


async def test_the_longest_recorded_beginning_is_the_task(tmp_path: Path) -> None:
    conversation = [user("go"), said("hello"), user("and now?")]
    model = await replaying(tmp_path, rollout("go", said("hello")), rollout(conversation, said("goodbye")))

    assert await answer(model, *conversation) == [said("goodbye")]
    assert await answer(model, user("go")) == [said("hello")]


async def test_a_shorter_beginning_counts_when_the_longest_does_not_go_on(tmp_path: Path) -> None:
    longer = [user("go"), call("a"), returned("a", "recorded output")]
    model = await replaying(
        tmp_path,
        rollout("go", call("a"), returned("a"), call("b"), returned("b"), said("end")),
        rollout(longer, said("something else")),
    )

    assert await answer(model, *longer, call("b"), returned("b")) == [said("end")]


async def test_the_input_is_found_in_whatever_form_it_is_written(tmp_path: Path) -> None:
    model = await replaying(tmp_path, rollout([{**user("go"), "type": "message", "id": "m1"}], said("end")))

    assert answer_text(await model.respond({"input": "go"})) == "end"
    assert answer_text(await model.respond({"input": [user("go")], "temperature": 0.5, "tools": []})) == "end"


async def test_a_recording_can_be_replayed_through_chat_completions(tmp_path: Path) -> None:
    model = await replaying(tmp_path, TWO_STEPS)
    messages: list[JsonObject] = [user("look twice")]
    while True:
        message = (await model.complete({"messages": messages}))["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        messages += [{"role": "tool", "tool_call_id": made["id"], "content": "fresh"} for made in message["tool_calls"]]

    assert [len(message.get("tool_calls") or []) for message in messages if message["role"] == "assistant"] == [2, 1, 0]
    assert messages[-1]["content"] == "x"


async def test_serving_a_recording_does_not_let_callers_change_it(tmp_path: Path) -> None:
    model = await replaying(tmp_path, rollout("go", call("a"), returned("a"), said("end")))

    (await answer(model, user("go")))[0]["call_id"] = "changed"

    assert await answer(model, user("go")) == [call("a")]


async def test_a_recording_of_an_empty_answer_is_one_empty_step(tmp_path: Path) -> None:
    model = await replaying(tmp_path, rollout("go"))

    assert await answer(model, user("go")) == []


# --- what is not recorded --------------------------------------------------------------------------------------


async def test_an_unknown_input_says_what_there_is_and_what_was_asked(tmp_path: Path) -> None:
    model = await replaying(tmp_path, rollout("go", said("a")), rollout("go", said("b")), rollout("stop", said("c")))

    with pytest.raises(RecordingNotFoundError) as raised:
        await model.respond({"input": [user("early"), user("w" * 500)]})

    assert raised.value.status == 404
    assert "3 recordings of 2 inputs" in raised.value.detail
    assert f"'{'w' * 120}'" in raised.value.detail


async def test_an_input_without_a_user_message_is_reported_as_such(tmp_path: Path) -> None:
    model = await replaying(tmp_path, rollout("go", said("a")))

    with pytest.raises(RecordingNotFoundError, match="no user message"):
        await model.respond({"input": []})


@pytest.mark.parametrize(
    "following",
    [
        [said("end")],
        [call("other"), returned("other")],
        [user("another question")],
        [call("a"), returned("a"), said("end"), user("more?")],
        [returned("a")],
    ],
)
async def test_a_known_input_with_items_that_no_recording_has_is_not_found(
    tmp_path: Path, following: list[JsonObject]
) -> None:
    model = await replaying(tmp_path, rollout("go", call("a", '{"n": 1}'), returned("a"), said("end")))

    with pytest.raises(RecordingNotFoundError, match="no recording goes on"):
        await answer(model, user("go"), *following)


@pytest.mark.parametrize("wrong", [{}, {"input": 3}, {"input": ["text"]}])
async def test_a_malformed_input_is_an_input_error(tmp_path: Path, wrong: JsonObject) -> None:
    model = await replaying(tmp_path, rollout("go", said("a")))

    with pytest.raises(InputError):
        await model.respond(wrong)


GOOD = json.dumps(rollout("go", said("a")))


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (f"{GOOD}\n\n{{torn", ":3: "),
        (f"{GOOD}\n[1]\n", ":2: "),
        ('{"response": {"output": []}}\n', ":1: the row has no responses_create_params.input"),
        ('{"responses_create_params": {"input": "x"}}\n', ":1: the row has no response.output"),
        ('{"responses_create_params": {"input": "x"}, "response": {}}\n', ":1: the row has no response.output"),
        ('{"responses_create_params": {"input": 3}, "response": {"output": []}}\n', ":1: "),
        ('{"responses_create_params": {"input": "x"}, "response": {"output": [3]}}\n', ":1: "),
    ],
)
async def test_a_wrong_rollouts_file_is_a_config_error_with_its_place(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(ConfigError, match=re.escape(f"{path}{where}")):
        await Recorded(RecordedSettings(rollouts=[str(path)])).startup()


async def test_a_missing_rollouts_file_is_a_config_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl"):
        await Recorded(RecordedSettings(rollouts=[str(tmp_path / "absent.jsonl")])).startup()


@pytest.mark.parametrize("wrong", [{}, {"rollouts": []}, {"rollouts": ["a"], "path": "b"}])
def test_settings_without_files_or_with_unknown_names_are_refused(wrong: JsonObject) -> None:
    with pytest.raises(ValidationError):
        RecordedSettings(**wrong)


def test_the_factory_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROLLMILL_ROLLOUTS", raising=False)

    with pytest.raises(ConfigError, match="rollouts"):
        create_app()


async def test_an_unknown_input_is_a_404_problem_over_http(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(GOOD, encoding="utf-8")
    app = create_app(RecordedSettings(rollouts=[str(path)]))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://model") as client,
    ):
        known = await client.post("/v1/responses", json={"input": "go"})
        unknown = await client.post("/v1/responses", json={"input": "what?"})

    assert answer_text(known.json()) == "a"
    assert unknown.status_code == 404
    assert unknown.json()["type"] == "urn:rollmill:problem:recording-not-found"


# --- replaying as a whole --------------------------------------------------------------------------------------


async def replay(model: Recorded, row: JsonObject, *, chat: bool = False) -> list[JsonObject]:
    """Go through a recording as an agent would; return the output that the agent would write down."""
    given = row["responses_create_params"]["input"]
    start = [user(given)] if isinstance(given, str) else given
    environment = iter([item for item in row["response"]["output"] if item["type"] == "function_call_output"])
    output: list[JsonObject] = []
    while True:
        response = await model.respond({"input": [*start, *(through_chat(output) if chat else output)]})
        made = response["output"]
        calls = [item for item in made if item["type"] == "function_call"]
        output += [*made, *(next(environment) for _ in calls)]
        if not calls:
            assert response["usage"] is not None
            return output
        assert response["usage"] is None


def through_chat(items: list[JsonObject]) -> list[JsonObject]:
    """Return the items as they come back when they travel as chat messages: item ids are lost."""
    messages: list[JsonObject] = []
    for item in items:
        if item["type"] == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
        else:
            messages.append(response_to_chat_completion({"output": [item]})["choices"][0]["message"])
    converted: list[JsonObject] = chat_request_to_responses({"messages": messages})["input"]
    return converted


STEPS = st.lists(st.integers(1, 3), max_size=4)


@given(shapes=st.lists(STEPS, min_size=1, max_size=4))
@settings(max_examples=30)
async def test_any_recordings_of_one_input_are_replayed_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[int]]
) -> None:
    rows = []
    for index, shape in enumerate(shapes):
        output = []
        for step, width in enumerate(shape):
            ids = [f"{index}-{step}-{n}" for n in range(width)]
            output += [*map(call, ids), *map(returned, ids)]
        rows.append(rollout("go", *output, said(f"end {index}")))
    model = await replaying(tmp_path_factory.mktemp("rows"), *rows)

    for row in rows:
        assert await replay(model, row) == row["response"]["output"]


RECORDED = Path(__file__).parents[3].parent / "shared/data/recorded"
FOLDERS = ["example_single_tool_call", "example_session_state_mgmt", "example_multi_step", "mcqa", "string_match"]


@pytest.mark.recorded
@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded rollouts here")
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("folder", FOLDERS)
async def test_real_recordings_are_replayed_as_they_were(folder: str, chat: bool) -> None:
    path = RECORDED / folder / "rollouts.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    model = Recorded(RecordedSettings(rollouts=[str(path)]))
    await model.startup()

    for row in rows:
        assert await replay(model, row, chat=chat) == row["response"]["output"]
