from collections.abc import AsyncIterator

import httpx
import pytest
from pydantic import SecretStr

from rollmill.testing import asgi_client
from rollmill_services.head.app import create_app
from rollmill_services.head.settings import HeadSettings

TOKEN = "the-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}
HERE = {"origin": "http://service", "sec-fetch-site": "same-origin"}


@pytest.fixture
async def head() -> AsyncIterator[httpx.AsyncClient]:
    settings = HeadSettings(token=SecretStr(TOKEN), session_secret=SecretStr("s"))
    async with asgi_client(create_app(settings)) as client:
        yield client


async def log_in(head: httpx.AsyncClient) -> str:
    answer = await head.post("/login", json={"token": TOKEN}, headers=HERE)
    assert answer.status_code == 204
    return answer.headers["set-cookie"]


async def test_the_page_is_served_without_a_token_under_a_strict_policy(head: httpx.AsyncClient) -> None:
    answer = await head.get("/", follow_redirects=True)

    assert answer.url.path == "/ui/"
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_files_of_the_page_are_packed_and_not_sent_twice(head: httpx.AsyncClient) -> None:
    first = await head.get("/ui/static/app.js", headers={"accept-encoding": "gzip"})
    assert (first.status_code, first.headers["content-encoding"]) == (200, "gzip")
    assert first.headers["content-type"].startswith("text/javascript")
    again = await head.get("/ui/static/app.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await head.get("/ui/static/app.js", headers={"accept-encoding": "identity"})).text == first.text


@pytest.mark.parametrize(
    "name",
    ["nope.js", "../app.py", "..%2f..%2fapp.py", "vendor", "vendor/%2e%2e/%2e%2e/app.py", "/etc/passwd", "app.js/"],
)
async def test_nothing_but_the_files_of_the_page_is_served(head: httpx.AsyncClient, name: str) -> None:
    answer = await head.get(f"/ui/static/{name}")

    assert answer.status_code == 404 or answer.headers["content-type"].startswith("text/html")
    assert "import" not in answer.text


async def test_a_login_gives_a_cookie_that_no_script_and_no_other_site_can_use(head: httpx.AsyncClient) -> None:
    assert (await head.get("/api/head/v1/services")).status_code == 401
    cookie = await log_in(head)

    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert (await head.get("/api/head/v1/services")).json() == {"services": []}
    assert (await head.get("/v1/services")).status_code == 401  # the cookie is good for the page's paths only


async def test_a_wrong_token_gets_no_session(head: httpx.AsyncClient) -> None:
    for token in ("", "wrong", TOKEN + "x", "ü" * 10):
        answer = await head.post("/login", json={"token": token}, headers=HERE)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


@pytest.mark.parametrize("session", ["", "x", "1.2.3", "99999999999.ab." + "0" * 64, "ü"])
async def test_a_made_up_session_is_refused(head: httpx.AsyncClient, session: str) -> None:
    answer = await head.get("/api/head/v1/services", headers=[(b"cookie", f"rollmill_page={session}".encode())])

    assert (answer.status_code, answer.json()["type"]) == (401, "urn:rollmill:problem:unauthorized")


async def test_logging_out_takes_the_cookie_away(head: httpx.AsyncClient) -> None:
    await log_in(head)
    assert (await head.post("/logout", headers=HERE)).status_code == 204
    assert (await head.get("/api/head/v1/services")).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://elsewhere.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "null"},
        {"origin": "http://service:81", "sec-fetch-site": "same-origin"},
    ],
)
async def test_cross_site_requests_are_refused_whatever_they_carry(
    head: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    await log_in(head)
    for method, path in (
        ("GET", "/api/head/v1/services"),
        ("POST", "/api/collector/v1/runs"),
        ("POST", "/login"),
        ("POST", "/logout"),
    ):
        answer = await head.request(method, path, headers=headers, json={})
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:rollmill:problem:cross-site")


async def test_a_link_to_the_page_may_come_from_anywhere(head: httpx.AsyncClient) -> None:
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    assert (await head.get("/ui/runs/x", headers=headers)).status_code == 200


async def test_programs_use_the_gateway_with_the_token(head: httpx.AsyncClient) -> None:
    assert (await head.get("/api/head/v1/services", headers=BEARER)).status_code == 200
    assert (await head.get("/api/head/v1/services", headers={"authorization": "Bearer wrong"})).status_code == 401


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/collector/version"),
        ("POST", "/api/collector/collect"),
        ("GET", "/api/collector/v1/runs/../../version"),
        ("GET", "/api/collector/v1/runs/%2e%2e/x"),
        ("DELETE", "/api/collector/v1/runs/x"),
        ("POST", "/api/profiler/v1/profile"),
        ("GET", "/api/profiler/v1/runs/x/rollouts/1/-2"),
        ("GET", "/api/profiler//evil.example/"),
        ("GET", "/api/model/v1/responses"),
    ],
)
async def test_the_gateway_passes_on_only_what_the_page_needs(head: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await head.request(method, path, headers=BEARER)

    assert answer.status_code in (404, 405, 422)
    assert answer.json()["type"] != "urn:rollmill:problem:service-not-found"


async def test_a_service_that_is_not_there_is_named(head: httpx.AsyncClient) -> None:
    answer = await head.get("/api/collector/v1/runs", headers=BEARER)
    assert (answer.status_code, answer.json()["service"]) == (404, "collector")
    gone = {"name": "profiler", "kind": "profiler", "url": "http://127.0.0.1:1", "version": "1"}
    await head.post("/v1/services", json=gone, headers=BEARER)
    answer = await head.get("/api/profiler/v1/runs/x/live", headers=BEARER)
    assert answer.status_code == 502
    assert "127.0.0.1:1" in answer.json()["detail"]
    assert list((await head.get("/v1/latencies", headers=BEARER)).json()["milliseconds"].values()) == [None]


async def test_without_a_token_the_page_needs_no_login_but_refuses_other_sites() -> None:
    async with asgi_client(create_app(HeadSettings())) as head:
        assert (await head.get("/api/head/v1/services")).status_code == 200
        refused = await head.get("/api/head/v1/services", headers={"sec-fetch-site": "cross-site"})
        assert refused.status_code == 403
