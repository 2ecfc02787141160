import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter
from pydantic import BaseModel, SecretStr

from rollmill.client.asgi import AsgiTransport
from rollmill.config.secret_values import MASK
from rollmill.config.settings import ServiceSettings
from rollmill.config.tokens import make_token_file, read_tokens, rotate_token_file
from rollmill.context import get_context
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import ConflictError, OverloadedError
from rollmill.server import ServiceApp, build_app
from rollmill.server.calls import Answer, Call, HotRoute, event_stream, json_answer
from rollmill.testing import asgi_client

PROBLEM = "urn:rollmill:problem:"


class Body(BaseModel):
    number: int


class Handlers:
    """What the hot routes of these tests do."""

    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = asyncio.Event()
        self.gate = asyncio.Event()

    async def echo(self, call: Call) -> Answer:
        return json_answer(call.json_object())

    async def context(self, call: Call) -> Answer:
        context = get_context()
        return json_answer({"id": context.request_id, "left": context.remaining(), "trace": context.traceparent})

    async def wait(self, call: Call) -> Answer:
        self.runs += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return json_answer({"runs": self.runs})

    async def crash(self, call: Call) -> Answer:
        raise ZeroDivisionError("secret internals")

    async def own_timeout(self, call: Call) -> Answer:
        raise TimeoutError("secret internals")

    async def conflict(self, call: Call) -> Answer:
        raise ConflictError("already there" + call.headers.get(b"x-said", b"").decode(), run="r1")

    async def overload(self, call: Call) -> Answer:
        raise OverloadedError("busy", retry_after=2)

    async def stream(self, call: Call) -> Answer:
        return event_stream(self._events(call.json_object()), named=True)

    async def _events(self, request: JsonObject) -> AsyncGenerator[JsonObject, None]:
        yield {"type": "first", "id": get_context().request_id}
        if request.get("fail") == "conflict":
            raise ConflictError("too late")
        if request.get("fail"):
            raise ZeroDivisionError("secret internals")
        yield {"type": "last", "id": get_context().request_id}

    def app(self, settings: ServiceSettings) -> ServiceApp:
        names = ("echo", "context", "wait", "crash", "own_timeout", "conflict", "overload", "stream")
        hot = [HotRoute("POST", f"/{name}", getattr(self, name), name, keyed=name == "wait") for name in names]
        router = APIRouter()

        @router.post("/slow-lane")
        async def slow_lane(body: Body) -> int:
            return body.number

        @router.get("/slow-crash")
        async def slow_crash() -> None:
            raise ZeroDivisionError("secret internals")

        return build_app(settings, kind="resources", title="test", routers=[router], hot=hot)


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
async def client(handlers: Handlers) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(handlers.app(ServiceSettings(max_body_bytes=1024, max_in_flight=2))) as client:
        yield client


def slug(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/problem+json"
    body: JsonObject = response.json()
    assert body["status"] == response.status_code
    return str(body["type"]).removeprefix(PROBLEM)


async def test_the_request_id_is_echoed_or_made_on_both_lanes(client: httpx.AsyncClient) -> None:
    for path in ("/echo", "/slow-lane", "/crash", "/nowhere"):
        response = await client.post(path, json={"number": 1}, headers={"x-request-id": "abc"})
        assert response.headers.get_list("x-request-id") == ["abc"], path
    assert len((await client.post("/echo")).headers["x-request-id"]) >= 16


async def test_request_id_deadline_and_trace_are_the_context_of_the_handler(client: httpx.AsyncClient) -> None:
    deadline = time.time() + 60
    headers = {"x-request-id": "abc", "x-rollmill-deadline": str(deadline), "traceparent": "00-x"}
    response = await client.post("/context", headers=headers)
    answer = response.json()
    assert (answer["id"], answer["trace"]) == ("abc", "00-x")
    assert 0 < answer["left"] <= 60.001
    assert get_context().request_id == ""


async def test_a_call_that_arrives_after_its_deadline_is_refused(client: httpx.AsyncClient, handlers: Handlers) -> None:
    response = await client.post("/wait", headers={"x-rollmill-deadline": str(time.time() - 1)})
    assert (response.status_code, slug(response)) == (504, "deadline-passed")
    assert response.json()["refused"] is True
    assert handlers.runs == 0
    response = await client.post("/slow-lane", headers={"x-rollmill-deadline": "1"}, json={"number": 1})
    assert response.status_code == 504


@pytest.mark.parametrize("garbage", ["soon", "nan", "inf", "", "-inf"])
async def test_a_deadline_that_is_no_time_is_a_wrong_request(client: httpx.AsyncClient, garbage: str) -> None:
    response = await client.post("/echo", headers={"x-rollmill-deadline": garbage})
    assert (response.status_code, slug(response)) == (422, "invalid-request")


async def test_the_handler_is_cancelled_at_the_deadline(client: httpx.AsyncClient, handlers: Handlers) -> None:
    response = await client.post("/wait", headers={"x-rollmill-deadline": str(time.time() + 0.5)})
    assert (response.status_code, slug(response)) == (504, "deadline-passed")
    assert handlers.cancelled.is_set()


async def test_a_service_bounds_calls_that_bring_no_deadline(handlers: Handlers) -> None:
    async with asgi_client(handlers.app(ServiceSettings(request_timeout_seconds=0.05))) as client:
        assert (await client.post("/wait")).status_code == 504
    assert handlers.cancelled.is_set()


async def test_a_timeout_of_the_handlers_own_is_not_taken_for_the_deadline(client: httpx.AsyncClient) -> None:
    response = await client.post("/own_timeout")
    assert (response.status_code, slug(response)) == (500, "internal")


async def test_errors_are_problem_documents(client: httpx.AsyncClient) -> None:
    response = await client.post("/conflict")
    assert (response.status_code, slug(response)) == (409, "conflict")
    body = response.json()
    assert (body["detail"], body["instance"], body["run"]) == ("already there", "/conflict", "r1")


async def test_overload_says_how_long_to_wait(client: httpx.AsyncClient) -> None:
    response = await client.post("/overload")
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(("method", "path"), [("POST", "/crash"), ("GET", "/slow-crash")])
async def test_a_crash_reveals_nothing_but_the_request_id(client: httpx.AsyncClient, method: str, path: str) -> None:
    response = await client.request(method, path, headers={"x-request-id": "abc"})
    assert (response.status_code, slug(response)) == (500, "internal")
    assert "secret" not in response.text
    assert "ZeroDivision" not in response.text
    assert response.headers.get_list("x-request-id") == ["abc"]


async def test_what_is_answered_and_raised_again_is_not_answered_twice(handlers: Handlers) -> None:
    app = handlers.app(ServiceSettings())
    async with app.running():
        reply = await AsgiTransport({"http://a": app}).send("GET", "http://a/slow-crash", headers={})
    assert reply.status == 500
    assert reply.json()["type"] == PROBLEM + "internal"


async def test_a_wrong_path_is_not_mistaken_for_a_missing_thing(client: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/echo", 405)):
        response = await client.request(method, path)
        assert response.status_code == status
        assert slug(response) == "about:blank"


async def test_a_wrong_field_is_named_by_its_pointer(client: httpx.AsyncClient) -> None:
    response = await client.post("/slow-lane", json={"number": "x"})
    assert (response.status_code, slug(response)) == (422, "invalid-request")
    assert [fault["pointer"] for fault in response.json()["errors"]] == ["/number"]


@pytest.mark.parametrize("body", [b"{torn", b"[1]", b'"text"', b"\xff", b"null", b"NaN"])
async def test_a_body_that_is_no_json_object_is_a_wrong_request(client: httpx.AsyncClient, body: bytes) -> None:
    response = await client.post("/echo", content=body)
    assert (response.status_code, slug(response)) == (422, "invalid-request")


async def test_an_empty_body_is_an_empty_object(client: httpx.AsyncClient) -> None:
    assert (await client.post("/echo")).json() == {}


async def chunks(*sizes: int) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b" " * size


@pytest.mark.parametrize("path", ["/echo", "/slow-lane"])
async def test_bodies_beyond_the_limit_are_refused(client: httpx.AsyncClient, path: str) -> None:
    headers = {"content-type": "application/json"}
    for content in (b" " * 1025, chunks(1025), chunks(600, 600)):
        response = await client.post(path, content=content, headers=headers)
        assert (response.status_code, slug(response)) == (413, "payload-too-large")
    padded = b'{"number": 1}'.ljust(1024)
    assert (await client.post(path, content=padded, headers=headers)).status_code == 200


async def test_a_client_that_leaves_amid_its_request_is_not_served_half_a_body(handlers: Handlers) -> None:
    app = handlers.app(ServiceSettings())
    sent: list[JsonObject] = []
    messages: list[JsonObject] = [{"type": "http.request", "body": b"", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> JsonObject:
        return messages.pop(0)

    async def send(message: JsonObject) -> None:
        sent.append(message)

    handlers.gate.set()
    scope: JsonObject = {"type": "http", "method": "POST", "path": "/wait", "headers": [], "query_string": b""}
    async with app.running():
        await app(scope, receive, send)  # type: ignore[arg-type]
    assert handlers.runs == 0
    assert sent[0]["status"] == 422


async def test_calls_beyond_the_most_in_flight_are_refused_and_probes_are_not(
    client: httpx.AsyncClient, handlers: Handlers
) -> None:
    waiting = [asyncio.create_task(client.post("/wait")) for _ in range(2)]
    while handlers.runs < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for path in ("/echo", "/slow-lane"):
        refused = await client.post(path, json={"number": 1})
        assert (refused.status_code, slug(refused)) == (503, "overloaded")
        assert float(refused.headers["retry-after"]) > 0
    assert (await client.get("/livez")).status_code == 204
    handlers.gate.set()
    assert [(await call).status_code for call in waiting] == [200, 200]
    assert (await client.post("/echo")).status_code == 200


async def test_a_repeat_under_the_same_key_joins_or_gets_the_same_answer(
    client: httpx.AsyncClient, handlers: Handlers
) -> None:
    headers = {"idempotency-key": "k"}
    calls = [asyncio.create_task(client.post("/wait", headers=headers)) for _ in range(2)]
    await asyncio.sleep(0.02)
    handlers.gate.set()
    answers = [(await call).json() for call in calls]
    answers.append((await client.post("/wait", headers=headers)).json())
    assert answers == [{"runs": 1}] * 3
    assert (await client.post("/wait", headers={"idempotency-key": "other"})).json() == {"runs": 2}


async def test_a_repeat_outlives_the_deadline_of_the_call_it_joined(
    client: httpx.AsyncClient, handlers: Handlers
) -> None:
    hurried = {"idempotency-key": "k", "x-rollmill-deadline": str(time.time() + 1.0)}
    first = asyncio.create_task(client.post("/wait", headers=hurried))
    await asyncio.sleep(0.02)
    repeat = asyncio.create_task(client.post("/wait", headers={"idempotency-key": "k"}))
    assert (await first).status_code == 504
    handlers.gate.set()
    response = await repeat
    assert (response.status_code, response.json()) == (200, {"runs": 2})


@pytest.mark.parametrize(
    ("authorization", "status"),
    [(None, 401), ("Bearer wrong", 401), ("secret", 401), ("Bearer ", 401), ("Bearer secret", 200)],
)
@pytest.mark.parametrize("path", ["/echo", "/slow-lane"])
async def test_the_bearer_token(handlers: Handlers, authorization: str | None, status: int, path: str) -> None:
    headers = {"authorization": authorization} if authorization else {}
    async with asgi_client(handlers.app(ServiceSettings(token=SecretStr("secret")))) as client:
        response = await client.post(path, json={"number": 1}, headers=headers)
        assert response.status_code == status
        if status == 401:
            assert slug(response) == "unauthorized"
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert "secret" not in response.text


async def test_only_the_probes_are_open(handlers: Handlers) -> None:
    async with asgi_client(handlers.app(ServiceSettings(token=SecretStr("secret")))) as client:
        statuses = {path: (await client.get(path)).status_code for path in PATHS}
    assert statuses == {path: 204 if path in ("/livez", "/readyz") else 401 for path in PATHS}


PATHS = ["/livez", "/readyz", "/version", "/docs", "/openapi.json", "/livez/", "/nowhere", "//livez"]


async def test_readiness_says_why_not(handlers: Handlers) -> None:
    app = handlers.app(ServiceSettings(name="x"))
    async with asgi_client(app) as client:
        assert (await client.get("/readyz")).status_code == 204
        app.runtime.drain()
        response = await client.get("/readyz")
        assert (response.status_code, slug(response), response.json()["detail"]) == (503, "not-ready", "draining")
        assert (await client.get("/livez")).status_code == 204
    assert app.runtime.not_ready == "draining"


async def test_a_service_is_not_ready_before_its_start(handlers: Handlers) -> None:
    app = handlers.app(ServiceSettings())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://s") as client:
        assert (await client.get("/readyz")).json()["detail"] == "starting"


async def test_streams_keep_their_context_and_end_themselves(client: httpx.AsyncClient) -> None:
    response = await client.post("/stream", headers={"x-request-id": "abc"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.split("\n\n")[:-1] == [
        'event: first\ndata: {"type":"first","id":"abc"}',
        'event: last\ndata: {"type":"last","id":"abc"}',
    ]


@pytest.mark.parametrize(("fail", "code"), [("conflict", "conflict"), ("crash", "internal")])
async def test_any_late_failure_of_a_stream_is_its_last_event(
    client: httpx.AsyncClient, fail: str, code: JsonValue
) -> None:
    response = await client.post("/stream", json={"fail": fail})
    assert response.status_code == 200
    last = response.text.split("\n\n")[-2]
    assert last.startswith("event: error\ndata: ")
    assert f'"code":"{code}"' in last
    assert "secret" not in last


async def test_a_token_of_a_file_is_masked_in_what_is_answered_also_after_a_rotation(
    handlers: Handlers, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    make_token_file(path)
    async with asgi_client(handlers.app(ServiceSettings(token_file=path))) as client:
        for _ in range(2):
            token = read_tokens(path)[0]
            headers = {"authorization": f"Bearer {token}", "x-said": f": the token is {token}"}
            answer = (await client.post("/conflict", headers=headers)).json()
            assert answer["detail"] == f"already there: the token is {MASK}"
            rotate_token_file(path)
