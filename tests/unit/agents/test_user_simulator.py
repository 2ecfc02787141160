import pytest

from rollmill.contracts.json import JsonObject
from rollmill.errors import InputError, OverloadedError
from rollmill.openai.items import function_call
from rollmill.testing import FakeEpisode, FakeModel
from rollmill.testing.models import Step
from rollmill_services.agents.user_simulator.agent import UserSimulator, UserSimulatorSettings

ROW: JsonObject = {"user_instructions": "You want {two} tickets."}


def simulator(**limits: int) -> UserSimulator:
    values = {"model": "m", "resources": "r", "user_model": "user", **limits}
    return UserSimulator(UserSimulatorSettings.parse(values, where="settings"))


def talking(assistant: list[Step], user: list[Step]) -> tuple[FakeEpisode, FakeModel]:
    model = FakeModel(user)

    async def book(arguments: JsonObject) -> str:
        return "booked"

    return FakeEpisode(assistant, tools={"book": book}, models={"user": model}), model


def said(items: list[JsonObject]) -> list[tuple[str, str]]:
    found = []
    for item in items:
        content = item.get("content", "")
        found.append(
            (str(item.get("role", item.get("type"))), content if isinstance(content, str) else content[0]["text"])
        )
    return found


async def test_the_two_talk_until_the_user_says_the_stop_phrase() -> None:
    episode, _ = talking(["How many?", "Done."], ["Tickets, please.", "Two.", "Thanks. ###STOP###"])

    verified = await simulator().run(ROW, episode)

    assert said(verified["response"]["output"]) == [
        ("user", "Tickets, please."),
        ("assistant", "How many?"),
        ("user", "Two."),
        ("assistant", "Done."),
        ("user", "Thanks."),
    ]
    assert (verified["user_turns"], verified["user_ended"], verified["reward"]) == (2, "stop_phrase", 1.0)
    assert verified["response"]["usage"]["output_tokens"] == 10  # the user's tokens are not the policy's


async def test_the_user_sees_the_conversation_with_the_sides_exchanged_and_no_tools() -> None:
    call = function_call("book", "{}", "c1")
    episode, user = talking([call, "Done."], ["Two tickets.", "###STOP###"])

    verified = await simulator().run({**ROW, "responses_create_params": {"input": []}}, episode)

    brief, *rest = user.requests[1]["input"]
    assert brief["role"] == "system"
    assert "You want {two} tickets." in brief["content"]
    assert "###STOP###" in brief["content"]
    assert said(rest) == [("user", "Hello! How can I help you?"), ("assistant", "Two tickets."), ("user", "Done.")]
    assert user.requests[1]["max_output_tokens"] == 1024
    assert "tools" not in user.requests[1]
    assert episode.calls == [("book", "{}")]
    assert [item["type"] for item in verified["response"]["output"]][1:3] == ["function_call", "function_call_output"]
    assert "two" not in str(episode.model.requests[0]["tools"])


async def test_a_message_of_the_row_opens_the_conversation() -> None:
    episode, user = talking(["Yes?"], ["###STOP###"])
    params = {"input": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]}

    verified = await simulator().run({**ROW, "responses_create_params": params}, episode)

    assert said(verified["response"]["output"]) == [("assistant", "Yes?")]
    assert said(user.requests[0]["input"])[2:] == [("assistant", "Hi"), ("user", "Yes?")]
    assert verified["user_turns"] == 1


async def test_the_user_writes_no_more_messages_than_allowed() -> None:
    episode, user = talking(["And?"], ["More."])
    verified = await simulator(max_turns=3).run(ROW, episode)
    assert (verified["user_turns"], verified["user_ended"]) == (3, "max_turns")
    assert len(user.requests) == len(episode.model.requests) == 3


async def test_the_assistant_cannot_end_the_conversation_with_the_users_phrase() -> None:
    episode, _ = talking(["###STOP###"], ["More.", "Enough. ###STOP###"])
    verified = await simulator().run(ROW, episode)
    assert verified["user_turns"] == 1
    assert verified["response"]["output"][-1]["content"] == "Enough."


async def test_a_user_who_says_nothing_ends_the_conversation() -> None:
    episode, _ = talking(["Yes?"], ["Hi.", "  "])
    verified = await simulator().run(ROW, episode)
    assert (verified["user_turns"], verified["user_ended"]) == (1, "silence")


async def test_a_user_who_stops_at_once_leaves_a_whole_but_empty_response() -> None:
    episode, _ = talking(["Yes?"], ["###STOP###"])
    verified = await simulator().run(ROW, episode)
    assert (verified["response"]["object"], verified["response"]["output"]) == ("response", [])
    assert episode.model.requests == []


async def test_a_conversation_stops_when_the_assistants_tokens_are_used_up() -> None:
    episode, _ = talking(["Yes?"], ["More."])
    verified = await simulator(max_output_tokens=10).run(ROW, episode)
    assert (verified["user_turns"], verified["user_ended"]) == (2, "cut_off")
    assert verified["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_calls_that_are_not_made_any_more_end_the_conversation() -> None:
    episode, user = talking([function_call("book", "{}", "c1")], ["Two tickets."])
    verified = await simulator(max_steps=2).run(ROW, episode)
    assert verified["user_ended"] == "max_steps"
    assert len(user.requests) == 1


@pytest.mark.parametrize("row", [{}, {"user_instructions": None}, {"user_instructions": ["x"]}])
async def test_a_row_without_instructions_is_refused_before_any_model_call(row: JsonObject) -> None:
    episode, user = talking(["Yes?"], ["Hi."])
    with pytest.raises(InputError, match="user_instructions"):
        await simulator().run(row, episode)
    assert user.requests == episode.model.requests == []


async def test_instructions_may_be_in_the_metadata() -> None:
    episode, _ = talking(["Yes?"], ["###STOP###"])
    assert (await simulator().run({"verifier_metadata": ROW}, episode))["user_ended"] == "stop_phrase"


async def test_an_error_of_the_users_model_ends_the_rollout() -> None:
    episode, _ = talking(["Yes?"], [OverloadedError("busy")])
    with pytest.raises(OverloadedError):
        await simulator().run(ROW, episode)


async def test_a_plain_request_is_refused_with_the_reason() -> None:
    episode, _ = talking(["Yes?"], ["Hi."])
    with pytest.raises(InputError, match="/run"):
        await simulator().respond({"input": "x"}, episode)
