from collections.abc import Callable

import pytest

from rollmill.client.directory import StaticDirectory
from rollmill.client.service_client import ServiceClient
from rollmill.client.services import ModelClient, ResourcesClient
from rollmill.client.transport import Reply, excerpt
from rollmill.contracts.json import dumps, loads
from rollmill.contracts.services import Instance
from rollmill.errors import UpstreamError
from rollmill.testing import FakeTransport
from rollmill.testing.transport import SentCall


def client_of(answer: Callable[[SentCall], Reply]) -> tuple[ServiceClient, FakeTransport]:
    transport = FakeTransport(answer)
    instances = [Instance(name="s", instance=f"s{n}", kind="resources", url=f"http://s{n}") for n in range(3)]
    return ServiceClient(transport, StaticDirectory(instances)), transport


def foreign(call: SentCall) -> Reply:
    """A resources server that knows only cookies, and closes nothing with `/verify`."""
    if call.url.endswith("/seed_session"):
        return Reply(200, {"set-cookie": "session=abc; Path=/; HttpOnly"}, b"{}")
    if call.url.endswith("/verify"):
        return Reply(200, {}, dumps({**loads(call.body), "reward": 1.0}))
    return Reply(200, {}, b"out")


async def test_a_session_of_cookies_stays_on_its_replica_and_carries_its_cookie() -> None:
    client, transport = client_of(foreign)
    resources = ResourcesClient(client)
    session = await resources.seed("s", {"id": 1})
    assert await resources.call_tool(session, "look", {"a": 1}, key="k") == "out"
    assert (await resources.verify(session, {"id": 1}, key="k"))["reward"] == 1.0
    assert session.closed is False
    await resources.close(session)
    await resources.close(session)
    assert [call.url.rsplit("/", 1)[1] for call in transport.calls] == [
        "seed_session",
        "look",
        "verify",
        "close_session",
    ]
    assert len({call.url.split("/")[2] for call in transport.calls}) == 1
    assert [call.headers.get("cookie") for call in transport.calls] == [
        None,
        "session=abc",
        "session=abc",
        "session=abc",
    ]
    assert "x-rollmill-close-session" in transport.calls[2].headers


async def test_the_header_wins_over_the_cookie_and_an_early_close_is_noted() -> None:
    def own(call: SentCall) -> Reply:
        headers = {"x-rollmill-session": "signed", "set-cookie": "a=b", "x-rollmill-close-session": "1"}
        return Reply(200, headers, b"{}")

    client, transport = client_of(own)
    resources = ResourcesClient(client)
    session = await resources.seed("s", {})
    assert session.headers == {"x-rollmill-session": "signed"}
    await resources.verify(session, {}, key="k")
    await resources.close(session)
    assert len(transport.calls) == 2


@pytest.mark.parametrize(("status", "visible"), [(400, True), (422, True), (500, False), (404, False)])
async def test_which_errors_of_a_foreign_tool_the_model_sees(status: int, visible: bool) -> None:
    client, _ = client_of(lambda call: foreign(call) if "seed" in call.url else Reply(status, {}, b"bad city"))
    resources = ResourcesClient(client)
    session = await resources.seed("s", {})
    if visible:
        assert "bad city" in await resources.call_tool(session, "look", {}, key="k")
    else:
        with pytest.raises(Exception, match="bad city"):
            await resources.call_tool(session, "look", {}, key="k")


@pytest.mark.parametrize("body", [b"[1]", b"null", b"<html>"])
async def test_an_answer_that_is_no_object_is_an_upstream_failure(body: bytes) -> None:
    client, _ = client_of(lambda _: Reply(200, {}, body))
    with pytest.raises(UpstreamError) as caught:
        await ModelClient(client).respond("s", {"input": "x"})
    assert caught.value.extensions["retryable"] is False


def test_excerpts_are_short_printable_and_on_one_line() -> None:
    assert excerpt(b"a\n\tb\x00c") == "a b c"
    assert excerpt(b"") == "empty body"
    assert excerpt(b"x" * 500) == "x" * 200 + "…"
