import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import OverloadedError, UpstreamError
from rollmill.openai.items import function_call, text_message
from rollmill.openai.usage import add_usage
from rollmill.server import AgentSettings
from rollmill.testing import FakeEpisode
from rollmill_services.agents.single_turn.agent import SingleTurn
from rollmill_services.agents.tool_loop.agent import ToolLoop, ToolLoopSettings


def tool_loop(**limits: int) -> ToolLoop:
    return ToolLoop(ToolLoopSettings.parse({"model": "m", "resources": "r", **limits}, where="settings"))


async def add(arguments: JsonObject) -> str:
    return str(arguments.get("a", 0) + arguments.get("b", 0))


def call(a: int, b: int, call_id: str = "c1") -> JsonObject:
    return function_call("add", f'{{"a": {a}, "b": {b}}}', call_id)


async def test_a_rollout_of_two_steps_keeps_every_item_in_order() -> None:
    episode = FakeEpisode([call(1, 2), "3"], tools={"add": add}, reward=0.5)
    row = {"id": 7, "responses_create_params": {"input": "1+2?", "temperature": 0.3}}

    verified = await tool_loop().run(row, episode)

    assert (verified["id"], verified["reward"]) == (7, 0.5)
    output = verified["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "function_call_output", "message"]
    assert output[1] == {"type": "function_call_output", "call_id": "c1", "output": "3"}
    assert verified["response"]["usage"]["total_tokens"] == 30
    second = episode.model.requests[1]
    assert [item["type"] for item in second["input"][-2:]] == ["function_call", "function_call_output"]
    assert second["temperature"] == 0.3


async def test_parallel_calls_are_all_answered_in_order() -> None:
    calls = [call(1, 1, "c1"), call(2, 2, "c2"), call(3, 3, "c3")]
    episode = FakeEpisode([calls, "done"], tools={"add": add})
    response = await tool_loop().respond({"input": "x"}, episode)
    answers = [item for item in response["output"] if item["type"] == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in answers] == [("c1", "2"), ("c2", "4"), ("c3", "6")]


async def test_the_calls_of_one_answer_run_at_the_same_time_up_to_the_setting() -> None:
    running, most = 0, 0

    async def watched(arguments: JsonObject) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return "done"

    calls = [call(n, n, f"c{n}") for n in range(6)]
    for at_once, expected in ((8, 6), (3, 3), (1, 1)):
        most = 0
        await tool_loop(parallel_tool_calls=at_once).respond(
            {"input": "x"}, FakeEpisode([calls, "done"], tools={"add": watched})
        )
        assert most == expected


async def test_outputs_are_in_the_order_of_the_calls_whichever_tool_answers_first() -> None:
    second_done = asyncio.Event()

    async def add_late(arguments: JsonObject) -> str:
        if arguments["a"] == 1:
            await second_done.wait()
        else:
            second_done.set()
        return await add(arguments)

    episode = FakeEpisode([[call(1, 0, "c1"), call(2, 0, "c2")], "done"], tools={"add": add_late})
    response = await tool_loop().respond({"input": "x"}, episode)
    answers = [item for item in response["output"] if item["type"] == "function_call_output"]
    assert [(item["call_id"], item["output"]) for item in answers] == [("c1", "1"), ("c2", "2")]


async def test_a_call_that_breaks_the_rollout_cancels_the_others_of_its_answer() -> None:
    ended: list[str] = []

    async def add_or_break(arguments: JsonObject) -> str:
        if arguments["a"] == 2:
            raise UpstreamError("the replica is gone")
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return "never"

    episode = FakeEpisode([[call(1, 0, "c1"), call(2, 0, "c2"), call(3, 0, "c3")]], tools={"add": add_or_break})
    with pytest.raises(UpstreamError, match="the replica is gone"):
        await tool_loop().respond({"input": "x"}, episode)
    assert ended == ["cancelled", "cancelled"]


async def test_a_cancelled_rollout_leaves_no_call_behind() -> None:
    started, ended = asyncio.Event(), []

    async def endless(arguments: JsonObject) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(arguments["a"])
        return "never"

    episode = FakeEpisode([[call(1, 0, "c1"), call(2, 0, "c2")]], tools={"add": endless})
    rollout = asyncio.create_task(tool_loop().respond({"input": "x"}, episode))
    await started.wait()
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert sorted(ended) == [1, 2]


async def test_calls_beyond_the_limit_are_not_made_and_the_model_is_told() -> None:
    calls = [call(n, n, f"c{n}") for n in range(3)]
    episode = FakeEpisode([calls, calls, "done"], tools={"add": add})
    response = await tool_loop(max_tool_calls=4).respond({"input": "x"}, episode)
    outputs = [item["output"] for item in response["output"] if item["type"] == "function_call_output"]
    assert outputs[:4] == ["0", "2", "4", "0"]
    assert all("used up its tool calls" in output for output in outputs[4:])
    assert len(episode.calls) == 4


async def test_the_tokens_of_all_answers_together_are_limited() -> None:
    episode = FakeEpisode([call(1, 2)], tools={"add": add})  # each answer has 5 output tokens
    response = await tool_loop(max_output_tokens=12).respond({"input": "x", "max_output_tokens": 6}, episode)
    assert [request["max_output_tokens"] for request in episode.model.requests] == [6, 6, 2]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert len(episode.calls) == 2


async def test_a_loop_that_ends_with_its_last_token_is_complete() -> None:
    response = await tool_loop(max_output_tokens=5).respond({"input": "x"}, FakeEpisode(["done"]))
    assert (response["status"], response["incomplete_details"]) == ("completed", None)


async def test_an_engine_that_tells_no_usage_is_asked_with_the_whole_budget_each_time() -> None:
    step: JsonObject = {"object": "response", "output": [call(1, 2)], "usage": None}
    episode = FakeEpisode([step, step, "done"], tools={"add": add})
    await tool_loop(max_output_tokens=7).respond({"input": "x"}, episode)
    assert [request["max_output_tokens"] for request in episode.model.requests] == [7, 7, 7]


async def test_arguments_that_an_engine_sends_as_an_object_are_used() -> None:
    item = {"type": "function_call", "name": "add", "call_id": "c", "arguments": {"a": 1, "b": 2}}
    episode = FakeEpisode([item, "done"], tools={"add": add})
    response = await tool_loop().respond({"input": "x"}, episode)
    assert response["output"][1]["output"] == "3"


async def test_the_last_steps_calls_are_not_made() -> None:
    episode = FakeEpisode([call(1, 2)], tools={"add": add})
    response = await tool_loop(max_steps=3).respond({"input": "x"}, episode)
    assert len(episode.model.requests) == 3
    assert len(episode.calls) == 2
    assert response["output"][-1]["type"] == "function_call"


async def test_a_truncated_answer_ends_the_loop_and_its_calls_are_not_made() -> None:
    step = {
        "object": "response",
        "output": [call(1, 2)],
        "incomplete_details": {"reason": "max_output_tokens"},
        "usage": None,
    }
    episode = FakeEpisode([step], tools={"add": add})
    response = await tool_loop().respond({"input": "x"}, episode)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert episode.calls == []
    assert response["usage"] is None


async def test_an_unknown_tool_and_a_call_without_arguments_go_on() -> None:
    nameless = {"type": "function_call", "call_id": "c2"}
    episode = FakeEpisode([[function_call("nope", "{}", "c1"), nameless], "ok"], tools={"add": add})
    response = await tool_loop().respond({"input": "x"}, episode)
    assert episode.calls == [("nope", "{}"), ("", "")]
    assert "unknown tool" in response["output"][2]["output"]


async def test_declared_tools_are_filled_in_only_when_the_request_names_none() -> None:
    own: list[JsonValue] = [{"type": "function", "name": "own"}]
    for tools, expected in ((None, ["add"]), (own, ["own"]), ([], [])):
        episode = FakeEpisode(["ok"], tools={"add": add})
        request = {"input": "x"} if tools is None else {"input": "x", "tools": tools}
        await tool_loop().respond(request, episode)
        assert [tool["name"] for tool in episode.model.requests[0]["tools"]] == expected


async def test_string_input_becomes_a_message_and_items_are_kept() -> None:
    episode = FakeEpisode(["ok"])
    await tool_loop().respond({"input": "hello"}, episode)
    items = episode.model.requests[0]["input"]
    assert len(items) == 1
    assert (items[0]["role"], items[0]["content"]) == ("user", "hello")
    assert "tools" not in episode.model.requests[0]


async def test_the_callers_request_is_not_changed() -> None:
    request: JsonObject = {"input": [{"role": "user", "content": "x"}]}
    await tool_loop().respond(request, FakeEpisode([call(1, 2), "ok"], tools={"add": add}))
    assert request == {"input": [{"role": "user", "content": "x"}]}


async def test_an_error_of_the_model_ends_the_rollout() -> None:
    with pytest.raises(OverloadedError):
        await tool_loop().respond({"input": "x"}, FakeEpisode([OverloadedError("busy")]))


async def test_a_response_without_output_is_an_empty_answer() -> None:
    response = await tool_loop().respond({"input": "x"}, FakeEpisode([{"object": "response", "output": None}]))
    assert response["output"] == []


async def test_single_turn_asks_once() -> None:
    episode = FakeEpisode([[text_message("42"), call(1, 2)]], tools={"add": add}, reward=1.0)
    verified = await SingleTurn(AgentSettings(model="m", resources="r")).run(
        {"responses_create_params": {"input": "6*7?"}}, episode
    )
    assert verified["reward"] == 1.0
    assert len(episode.model.requests) == 1
    assert episode.calls == []


async def test_one_agent_runs_many_rollouts_at_once() -> None:
    agent = tool_loop()

    async def one(number: int) -> str:
        async def slow(arguments: JsonObject) -> str:
            await asyncio.sleep(0)
            return await add(arguments)

        response = await agent.respond({"input": "x"}, FakeEpisode([call(number, 1), "ok"], tools={"add": slow}))
        return str(response["output"][1]["output"])

    tasks = [asyncio.create_task(one(number)) for number in range(20)]
    assert [await task for task in tasks] == [str(number + 1) for number in range(20)]


usages = st.recursive(
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 9)),
    lambda inner: st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=4,
)


@given(st.lists(st.fixed_dictionaries({"tokens": st.integers(0, 99), "details": usages}), min_size=1, max_size=5))
@settings(max_examples=50)
def test_usage_is_summed(parts: list[JsonObject]) -> None:
    total: JsonObject | None = None
    for part in parts:
        total = add_usage(total, part)
    assert total is not None
    assert total["tokens"] == sum(part["tokens"] for part in parts)


def test_usage_sums_nested_details_and_skips_absent_ones() -> None:
    first = {"input_tokens": 1, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": None, "tier": "a"}
    second = {"input_tokens": 3, "input_tokens_details": None, "output_tokens": 4, "tier": "b"}
    total = add_usage(add_usage(add_usage(None, None), first), second)
    assert total == {
        "input_tokens": 4,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 4,
        "tier": "a",
    }
    assert add_usage(None, "torn") is None
