import asyncio
import math
from collections.abc import AsyncIterator, Callable
from typing import ClassVar

import httpx
import pytest
from pydantic import SecretStr

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConflictError, InputError
from rollmill.server import Resources, Session, ToolError, resources_app, tool
from rollmill.server.sessions import SessionSigner
from rollmill.testing import asgi_client

SETTINGS = ServiceSettings(session_secret=SecretStr("signing"))
CLOSE = {"x-rollmill-close-session": "1"}


class Ledger(Resources):
    """Counts entries per session; remembers what was seeded and closed."""

    reverify_mode: ClassVar[ReverifyMode] = "unknown"

    def __init__(self, settings: ServiceSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.log: list[str] = []
        self.grading = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def startup(self) -> None:
        self.log.append("startup")

    async def shutdown(self) -> None:
        self.log.append("shutdown")

    async def seed_session(self, session: Session, row: Row) -> None:
        if row.get("bad"):
            raise InputError("the task has no start")
        session.state["entries"] = row.get("start", 0)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
        self.grading.set()
        await self.gate.wait()
        reward = rollout.field("give")
        if reward == "nan":
            return math.nan
        if reward == "crash":
            raise ZeroDivisionError("secret internals")
        if reward == "require":
            rollout.require("expected")
        entries = session.state.get("entries")
        return Verdict(float(entries or 0), {"entries": entries}, {"full": 1.0}) if reward is None else float(reward)

    async def close_session(self, session: Session) -> None:
        self.log.append(f"close {session.state.get('entries')}")
        if session.state.get("entries") == 13:
            raise RuntimeError("cannot close")

    @tool
    async def enter(self, amount: int, session: Session, how: str = "ok") -> str:
        """Enter an amount."""
        if how == "refuse":
            raise ToolError("the ledger is full")
        if how == "crash":
            raise ZeroDivisionError("secret internals")
        if how == "own":
            raise ConflictError("taken")
        session.state["entries"] = session.state.get("entries", 0) + amount
        return f"{session.state['entries']} entries"

    @property
    def closed(self) -> list[str]:
        return [line for line in self.log if line.startswith("close")]


class Stateless(Ledger):
    reverify_mode: ClassVar[ReverifyMode] = "stateless"


class Bound(Ledger):
    reverify_mode: ClassVar[ReverifyMode] = "unsupported"


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
async def client(ledger: Ledger) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(resources_app(ledger)) as client:
        yield client


async def seed(client: httpx.AsyncClient, **row: object) -> dict[str, str]:
    response = await client.post("/seed_session", json=row)
    client.cookies.clear()
    assert response.json() == {}
    return {"x-rollmill-session": response.headers["x-rollmill-session"]}


def slug(response: httpx.Response) -> str:
    return str(response.json()["type"]).removeprefix("urn:rollmill:problem:")


async def test_the_life_of_a_session(client: httpx.AsyncClient, ledger: Ledger) -> None:
    session = await seed(client, start=2)
    reply = await client.post("/enter", json={"amount": 3}, headers=session)
    assert (reply.status_code, reply.text) == (200, "5 entries")
    assert reply.headers["content-type"].startswith("text/plain")
    graded = await client.post("/verify", json={"id": 1, "response": {}}, headers=session)
    assert graded.json() == {"id": 1, "response": {}, "reward": 5.0, "entries": 5, "reward_components": {"full": 1.0}}
    assert ledger.closed == []
    for _ in range(2):
        closed = await client.post("/close_session", headers=session)
        assert (closed.status_code, closed.json()) == (200, {})
    assert ledger.closed == ["close 5"]


async def test_the_cookie_is_as_good_as_the_header(client: httpx.AsyncClient) -> None:
    response = await client.post("/seed_session", json={"start": 7})
    cookie = response.headers["set-cookie"]
    assert cookie.startswith(f"rollmill_session={response.headers['x-rollmill-session']};")
    assert "HttpOnly" in cookie
    assert (await client.post("/enter", json={"amount": 1})).text == "8 entries"  # the client's own cookie jar


async def test_sessions_do_not_see_each_other(client: httpx.AsyncClient) -> None:
    one, two = await seed(client, start=1), await seed(client, start=10)
    assert (await client.post("/enter", json={"amount": 1}, headers=one)).text == "2 entries"
    assert (await client.post("/enter", json={"amount": 1}, headers=two)).text == "11 entries"


@pytest.mark.parametrize("path", ["/enter", "/verify", "/close_session"])
async def test_a_forged_session_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    real = (await seed(client))["x-rollmill-session"]
    other = SessionSigner("other").issue()[1]
    for forged in (other, "made-up", real[:-1] + ("0" if real[-1] != "0" else "1"), "." + real):
        for headers in ({"x-rollmill-session": forged}, {"cookie": f"rollmill_session={forged}"}):
            response = await client.post(path, json={"amount": 1}, headers=headers)
            assert (response.status_code, slug(response)) == (404, "session-not-found")


@pytest.mark.parametrize("path", ["/enter", "/verify"])
async def test_a_session_that_was_closed_is_not_found(client: httpx.AsyncClient, path: str) -> None:
    session = await seed(client)
    await client.post("/close_session", headers=session)
    response = await client.post(path, json={"amount": 1}, headers=session)
    assert (response.status_code, slug(response)) == (404, "session-not-found")


async def test_another_replica_of_the_deployment_does_not_know_the_session(client: httpx.AsyncClient) -> None:
    session = {"x-rollmill-session": SessionSigner("signing").issue()[1]}
    assert (await client.post("/enter", json={"amount": 1}, headers=session)).status_code == 404


async def test_idle_sessions_are_closed_once() -> None:
    ledger = Ledger(ServiceSettings(session_idle_seconds=0.05))
    async with asgi_client(resources_app(ledger)) as client:
        sessions = [await seed(client, start=n) for n in (1, 2, 13)]
        async with asyncio.timeout(10):
            while len(ledger.closed) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await client.post("/enter", json={"amount": 1}, headers=sessions[0])).status_code == 404
        assert (await client.post("/close_session", headers=sessions[0])).status_code == 200
        await seed(client, start=4)
        async with asyncio.timeout(10):
            while len(ledger.closed) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert sorted(ledger.closed) == ["close 1", "close 13", "close 2", "close 4"]


async def test_open_sessions_are_closed_at_shutdown(ledger: Ledger) -> None:
    async with asgi_client(resources_app(ledger)) as client:
        await seed(client, start=13)
        await seed(client, start=2)
    assert ledger.log[0] == "startup"
    assert sorted(ledger.closed) == ["close 13", "close 2"]
    assert ledger.log[-1] == "shutdown"


async def test_a_failed_seed_opens_no_session(client: httpx.AsyncClient, ledger: Ledger) -> None:
    response = await client.post("/seed_session", json={"bad": True})
    assert (response.status_code, slug(response)) == (422, "invalid-request")
    assert "x-rollmill-session" not in response.headers
    assert ledger.closed == ["close None"]  # what was opened before it failed is closed


async def test_verify_can_close_the_session_and_says_so(client: httpx.AsyncClient, ledger: Ledger) -> None:
    session = await seed(client, start=2)
    response = await client.post("/verify", json={}, headers=session | CLOSE)
    assert response.json()["reward"] == 2.0
    assert response.headers["x-rollmill-close-session"] == "1"
    assert ledger.closed == ["close 2"]
    assert (await client.post("/verify", json={}, headers=session)).status_code == 404


async def test_a_failed_verify_leaves_the_session_open(client: httpx.AsyncClient, ledger: Ledger) -> None:
    session = await seed(client, start=2)
    response = await client.post("/verify", json={"give": "crash"}, headers=session | CLOSE)
    assert (response.status_code, slug(response)) == (500, "internal")
    assert "secret" not in response.text
    assert ledger.closed == []
    assert (await client.post("/verify", json={}, headers=session)).json()["reward"] == 2.0


async def test_a_session_closed_while_it_is_graded_is_closed_only_once(
    client: httpx.AsyncClient, ledger: Ledger
) -> None:
    session = await seed(client, start=2)
    ledger.gate.clear()
    grading = asyncio.create_task(client.post("/verify", json={}, headers=session | CLOSE))
    await ledger.grading.wait()
    await client.post("/close_session", headers=session)
    ledger.gate.set()
    assert (await grading).json()["reward"] == 2.0
    assert ledger.closed == ["close 2"]


async def test_a_repeated_verify_gets_the_same_verdict_though_the_session_is_closed(
    client: httpx.AsyncClient, ledger: Ledger
) -> None:
    headers = await seed(client, start=2) | CLOSE | {"idempotency-key": "k"}
    first, again = [await client.post("/verify", json={}, headers=headers) for _ in range(2)]
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.content == again.content
    assert ledger.closed == ["close 2"]


async def test_a_repeated_tool_call_acts_once(client: httpx.AsyncClient) -> None:
    session = await seed(client)
    for key, text in (("a", "1 entries"), ("a", "1 entries"), ("b", "2 entries")):
        headers = session | {"idempotency-key": key}
        assert (await client.post("/enter", json={"amount": 1}, headers=headers)).text == text


@pytest.mark.parametrize("give", ["nan"])
async def test_a_reward_that_is_not_finite_never_leaves(client: httpx.AsyncClient, give: str) -> None:
    response = await client.post("/verify", json={"give": give})
    assert response.status_code == 500
    assert "not finite" in response.json()["detail"]


async def test_a_plain_number_is_a_verdict(client: httpx.AsyncClient) -> None:
    assert (await client.post("/verify", json={"give": 1})).json() == {"give": 1, "reward": 1.0}


async def test_a_row_without_what_the_verifier_needs_is_named(client: httpx.AsyncClient) -> None:
    response = await client.post("/verify", json={"give": "require"})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "/expected")


@pytest.mark.parametrize("make", [Ledger, Stateless])
async def test_without_a_session_a_row_is_graded_in_one_of_its_own(make: Callable[[], Ledger]) -> None:
    ledger = make()
    async with asgi_client(resources_app(ledger)) as client:
        response = await client.post("/verify", json={"start": 4})
        assert response.json()["reward"] == 4.0
        assert "x-rollmill-close-session" not in response.headers
        assert (await client.post("/verify", json={"give": "crash"})).status_code == 500
        assert len(ledger.closed) == 2


async def test_a_verifier_bound_to_its_session_refuses_rows_without_one() -> None:
    async with asgi_client(resources_app(Bound())) as client:
        response = await client.post("/verify", json={"start": 4})
        assert (response.status_code, slug(response)) == (404, "session-not-found")
        assert (await client.post("/verify", json={}, headers=await seed(client))).status_code == 200


@pytest.mark.parametrize(("make", "mode"), [(Ledger, "unknown"), (Stateless, "stateless"), (Bound, "unsupported")])
async def test_the_reverify_mode_is_told(make: Callable[[], Ledger], mode: str) -> None:
    async with asgi_client(resources_app(make())) as client:
        assert (await client.get("/reverify_mode")).json() == mode
        assert (await client.get("/version")).json()["capabilities"]["reverify_mode"] == mode


async def test_a_server_tells_who_grades_and_what_is_scored() -> None:
    async with asgi_client(resources_app(Stateless())) as client:
        told = (await client.get("/version")).json()["capabilities"]

    assert told["verifier"]["name"].endswith(":Stateless")
    assert len(told["verifier"]["digest"]) == 64
    assert (told["score_fields"], told["answer_field"]) == (["reward"], "extracted_answer")


async def test_a_tool_called_without_a_session_gets_a_fresh_one(client: httpx.AsyncClient) -> None:
    response = await client.post("/enter", json={"amount": 1})
    session = {"x-rollmill-session": response.headers["x-rollmill-session"]}
    assert response.text == "1 entries"
    assert (await client.post("/enter", json={"amount": 1}, headers=session)).text == "2 entries"


@pytest.mark.parametrize(
    ("arguments", "status", "name", "detail"),
    [
        ({}, 422, "invalid-request", "amount: Field required"),
        ({"amount": "many"}, 422, "invalid-request", "amount: "),
        ({"amount": 1, "extra": 2}, 422, "invalid-request", "extra: "),
        ({"amount": 1, "how": "refuse"}, 400, "tool-error", "the ledger is full"),
        ({"amount": 1, "how": "crash"}, 500, "tool-failed", "tool enter failed"),
        ({"amount": 1, "how": "own"}, 500, "tool-failed", "taken"),
    ],
)
async def test_what_a_model_is_told_about_a_failed_tool(
    client: httpx.AsyncClient, arguments: JsonObject, status: int, name: str, detail: str
) -> None:
    response = await client.post("/enter", json=arguments, headers=await seed(client))
    assert (response.status_code, slug(response)) == (status, name)
    assert detail in response.json()["detail"]
    assert "secret" not in response.text


async def test_methods_that_are_no_tools_cannot_be_called(client: httpx.AsyncClient) -> None:
    for path in ("/compute_metrics", "/startup", "/shutdown", "/settings", "/_enter"):
        assert (await client.post(path, json={})).status_code == 404


async def test_metrics_are_aggregated(client: httpx.AsyncClient) -> None:
    graded = [{"_ng_task_index": 0, "_ng_rollout_index": n, "reward": float(n)} for n in range(2)]
    response = await client.post("/aggregate_metrics", json={"verify_responses": graded})
    assert response.status_code == 200
    assert set(response.json()) == {"group_level_metrics", "agent_metrics", "key_metrics"}
    assert response.json()["key_metrics"]["mean/reward"] == 0.5
    wrong = await client.post("/aggregate_metrics", json={"verify_responses": 3})
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/verify_responses")


async def test_the_openapi_document_lists_the_hot_routes_with_their_bodies(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path in ("/seed_session", "/verify", "/close_session", "/aggregate_metrics", "/enter"):
        assert "application/json" in paths[path]["post"]["requestBody"]["content"], path
    schema = paths["/enter"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["amount"]
    assert "get" in paths["/reverify_mode"]
