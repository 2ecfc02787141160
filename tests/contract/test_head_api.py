from collections.abc import AsyncIterator

import httpx
import pytest

from rollmill.contracts.json import JsonObject
from rollmill.testing import asgi_client
from rollmill_services.head.app import create_app
from rollmill_services.head.settings import HeadSettings

WEATHER: JsonObject = {"name": "weather", "kind": "resources", "url": "http://w:1", "version": "1"}


@pytest.fixture
async def head() -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(create_app(HeadSettings(lease_seconds=20))) as client:
        yield client


async def register(head: httpx.AsyncClient, **changes: object) -> httpx.Response:
    return await head.post("/v1/services", json=WEATHER | changes)


async def test_the_life_of_a_registration(head: httpx.AsyncClient) -> None:
    created = await register(head, capabilities={"tools": []})
    assert created.status_code == 201
    assert created.json()["lease_seconds"] == 20
    path = f"/v1/services/weather/{created.json()['instance']}"
    beat = await head.put(path, json={"in_flight": 2, "capacity": 5, "state": "draining"})
    assert beat.json() == created.json()
    (found,) = (await head.get("/v1/services/weather")).json()["services"]
    assert (found["in_flight"], found["state"], found["capabilities"]) == (2, "draining", {"tools": []})
    assert [(await head.delete(path)).status_code for _ in range(2)] == [204, 204]
    gone = await head.get("/v1/services/weather")
    assert (gone.status_code, gone.json()["type"]) == (404, "urn:rollmill:problem:service-not-found")
    assert gone.json()["service"] == "weather"
    assert (await head.put(path, json={})).status_code == 404


async def test_services_are_listed_by_kind(head: httpx.AsyncClient) -> None:
    await register(head)
    await register(head, name="policy", kind="model", url="http://p:1")
    for query, names in (("", ["policy", "weather"]), ("?kind=model", ["policy"]), ("?kind=agent", [])):
        found = (await head.get(f"/v1/services{query}")).json()["services"]
        assert [service["name"] for service in found] == names
    assert (await head.get("/v1/services?kind=nonsense")).status_code == 422


async def test_one_name_has_one_kind(head: httpx.AsyncClient) -> None:
    await register(head)
    response = await register(head, kind="model")
    assert (response.status_code, response.json()["type"]) == (409, "urn:rollmill:problem:conflict")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"name": "../x"}, "/name"),
        ({"name": ""}, "/name"),
        ({"kind": "server"}, "/kind"),
        ({"url": "ftp://w"}, "/url"),
        ({"url": "http://"}, "/url"),
        ({"url": "http://user:hunter2@weather:1"}, "/url"),
        ({"url": "http://weather:99999"}, "/url"),
        ({"url": "http://weather:1?x=1"}, "/url"),
        ({"url": "http://[::1"}, "/url"),
        ({"url": "http://169.254.169.254/latest"}, "/url"),
        ({"url": "https://example.org"}, "/url"),
        ({"url": "file:///etc/passwd"}, "/url"),
        ({"settings": {"api_key": "x"}}, "/settings"),
        ({"token": "x"}, "/token"),
    ],
)
async def test_a_wrong_field_is_named(head: httpx.AsyncClient, changes: JsonObject, pointer: str) -> None:
    response = await register(head, **changes)
    assert response.status_code == 422
    assert [fault["pointer"] for fault in response.json()["errors"]] == [pointer]
    assert "hunter2" not in response.text


async def test_a_public_host_can_be_allowed_and_the_number_of_instances_is_limited() -> None:
    settings = HeadSettings(allowed_hosts=[".Example.org", "100.64.0.0/10"], max_instances=2)
    async with asgi_client(create_app(settings)) as head:
        assert (await register(head, url="http://100.128.0.1:1")).status_code == 422
        assert (await register(head, url="https://gpu.example.org")).status_code == 201
        assert (await register(head, url="http://100.64.0.2:1")).status_code == 201
        refused = await register(head, url="http://10.0.0.3:1")
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:rollmill:problem:overloaded")
        assert (await register(head, url="http://100.64.0.2:1")).status_code == 201
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 network"):
        HeadSettings(allowed_hosts=["100.64.0.0/100"])


async def test_discovery_has_exactly_the_public_fields(head: httpx.AsyncClient) -> None:
    await register(head)
    (found,) = (await head.get("/v1/services")).json()["services"]
    assert set(found) == {
        "name",
        "instance",
        "kind",
        "url",
        "version",
        "capabilities",
        "in_flight",
        "capacity",
        "state",
        "lease_age_seconds",
    }


async def test_the_openapi_document_builds(head: httpx.AsyncClient) -> None:
    document = (await head.get("/openapi.json")).json()
    assert {"/v1/services", "/v1/services/{name}", "/v1/services/{name}/{instance}", "/livez"} <= set(document["paths"])


async def test_the_page_of_operations_loads_nothing_and_runs_nothing(head: httpx.AsyncClient) -> None:
    page = await head.get("/docs")
    assert page.status_code == 200
    assert "/v1/services/{name}/{instance}" in page.text
    assert "http" not in page.text.lower()
    assert "<script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert (await head.get("/redoc")).status_code == 404
