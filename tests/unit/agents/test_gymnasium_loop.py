import pytest

from rollmill.contracts.json import JsonObject
from rollmill.errors import UpstreamError
from rollmill.testing import FakeEpisode
from rollmill_services.agents.gymnasium_loop.agent import GymnasiumLoop, GymnasiumLoopSettings


def loop(**limits: int) -> GymnasiumLoop:
    return GymnasiumLoop(GymnasiumLoopSettings.parse({"model": "m", "resources": "r", **limits}, where="settings"))


def seen(text: str, **more: object) -> JsonObject:
    return {"observation": text, "reward": 0.0, "terminated": False, "truncated": False, "info": {}, **more}


def said(response: JsonObject) -> list[tuple[str, str]]:
    """Role and text of each message of a response."""
    found = []
    for item in response["output"]:
        content = item["content"]
        found.append((item["role"], content if isinstance(content, str) else content[0]["text"]))
    return found


async def test_observations_and_actions_take_turns_until_the_episode_is_over() -> None:
    episode = FakeEpisode(
        ["left", "right"], observations=[seen("start"), seen("middle"), seen("goal", terminated=True)], reward=0.5
    )

    verified = await loop().run({"id": 1, "responses_create_params": {"input": "Play."}}, episode)

    assert verified["reward"] == 0.5
    assert episode.actions == ["left", "right"]
    assert said(verified["response"]) == [
        ("user", "start"),
        ("assistant", "left"),
        ("user", "middle"),
        ("assistant", "right"),
        ("user", "goal"),
    ]
    assert [item["role"] for item in episode.model.requests[1]["input"]] == ["user", "user", "assistant", "user"]
    assert verified["response"]["usage"]["output_tokens"] == 10
    assert verified["response"]["incomplete_details"] is None


async def test_an_episode_that_the_environment_truncates_is_over() -> None:
    episode = FakeEpisode(["left"], observations=[seen("start"), seen("late", truncated=True)])
    await loop().respond({"input": "x"}, episode)
    assert episode.actions == ["left"]


async def test_no_more_actions_are_taken_than_allowed() -> None:
    episode = FakeEpisode(["left"], observations=[seen("start")])
    response = await loop(max_steps=3).respond({"input": "x"}, episode)
    assert episode.actions == ["left"] * 3
    assert len(episode.model.requests) == 3
    assert response["incomplete_details"] is None


async def test_the_episode_stops_when_the_tokens_are_used_up() -> None:
    episode = FakeEpisode(["left"], observations=[seen("start")])
    response = await loop(max_output_tokens=10).respond({"input": "x"}, episode)
    assert episode.actions == ["left", "left"]
    assert [request["max_output_tokens"] for request in episode.model.requests] == [10, 5]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_an_answer_that_was_cut_off_is_no_action() -> None:
    step: JsonObject = {
        "object": "response",
        "output": [],
        "incomplete_details": {"reason": "max_output_tokens"},
        "usage": None,
    }
    episode = FakeEpisode([step], observations=[seen("start")])
    response = await loop().respond({"input": "x"}, episode)
    assert episode.actions == []
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_an_empty_answer_is_an_empty_action() -> None:
    episode = FakeEpisode(
        [{"object": "response", "output": []}], observations=[seen("start"), seen("", terminated=True)]
    )
    await loop().respond({"input": "x"}, episode)
    assert episode.actions == [""]


async def test_a_row_needs_no_input_and_an_observation_may_be_any_json() -> None:
    episode = FakeEpisode(["0"], observations=[seen("x", observation=[1, 2]), seen("", terminated=True)])
    response = await loop().respond({}, episode)
    assert said(response)[0] == ("user", "[1,2]")


async def test_an_answer_without_an_observation_is_the_environments_fault() -> None:
    episode = FakeEpisode(["left"], observations=[{"info": {}}])
    with pytest.raises(UpstreamError, match="no `observation`") as caught:
        await loop().respond({"input": "x"}, episode)
    assert caught.value.extensions["boundary"] == "resources"
