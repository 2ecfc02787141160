import pytest

from rollmill.client.transport import Reply
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.errors import ConnectError, OverloadedError
from rollmill.openai.items import text_message
from rollmill.server import build_app
from rollmill.testing import FakeClock, FakeEpisode, FakeModel, FakeTransport, asgi_client, service_client
from rollmill.testing.transport import SentCall


async def test_a_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(5.0)
    clock.advance(1.5)
    await clock.sleep(2.0)
    assert (clock(), clock.slept) == (8.5, [2.0])


async def test_a_fake_model_gives_its_steps_in_turn_and_repeats_the_last() -> None:
    whole: JsonObject = {"object": "response", "output": [], "id": "r"}
    model = FakeModel([whole, OverloadedError("busy"), text_message("item"), [text_message("a")], "text"])
    assert await model.respond({"input": "1"}) is whole
    with pytest.raises(OverloadedError):
        await model.respond({"input": "2"})
    for expected in ("item", "a", "text", "text"):
        answer = await model.respond({"input": "x"})
        assert answer["output"][0]["content"][0]["text"] == expected
    assert [request["input"] for request in model.requests] == ["1", "2", "x", "x", "x", "x"]


async def test_a_fake_model_can_be_a_function_of_the_request() -> None:
    model = FakeModel(lambda request: str(request["input"]))
    answer = await model.respond({"input": "echo"})
    assert answer["output"][0]["content"][0]["text"] == "echo"


async def test_a_fake_episode_calls_its_tools_and_gives_its_reward() -> None:
    async def double(arguments: JsonObject) -> str:
        return str(arguments["n"] * 2)

    episode = FakeEpisode(["x"], tools={"double": double}, reward=0.25)
    assert await episode.call_tool("double", '{"n": 4}') == "8"
    assert "unknown tool" in await episode.call_tool("nope", "{}")
    assert episode.calls == [("double", '{"n": 4}'), ("nope", "{}")]
    assert await episode.verify({"id": 1}) == {"id": 1, "reward": 0.25}
    assert [tool["name"] for tool in episode.tools] == ["double"]


async def test_a_fake_transport_remembers_calls_and_raises_what_its_function_raises() -> None:
    def answer(call: SentCall) -> Reply:
        if call.url.endswith("/away"):
            raise ConnectError("away")
        return Reply(200, {"a": "b"}, call.body)

    transport = FakeTransport(answer)
    async with transport.stream("POST", "http://x/y", headers={"h": "1"}, body=b"body") as reply:
        assert [chunk async for chunk in reply.chunks] == [b"body"]
    with pytest.raises(ConnectError):
        await transport.send("GET", "http://x/away", headers={})
    assert [(call.method, call.url) for call in transport.calls] == [("POST", "http://x/y"), ("GET", "http://x/away")]
    await transport.aclose()


async def test_an_application_is_started_and_stopped_around_its_client() -> None:
    app = build_app(ServiceSettings(name="x"), kind="model", title="x")
    async with asgi_client(app) as client:
        assert (await client.get("/readyz")).status_code == 204
        assert (await client.get("/version")).json()["name"] == "x"
    assert app.runtime.not_ready == "stopping"


async def test_applications_in_one_process_reach_each_other_by_name() -> None:
    apps = {name: build_app(ServiceSettings(name=name), kind="model", title=name) for name in ("a", "b")}
    async with service_client(apps) as client:
        assert (await client.call("a", "/version", method="GET")).json()["name"] == "a"
        assert (await apps["a"].runtime.client.call("b", "/version", method="GET")).json()["name"] == "b"
