"""`GET /metrics` of every kind of service."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.server import (
    Agent,
    AgentSettings,
    Resources,
    ServiceApp,
    Session,
    agent_app,
    model_app,
    resources_app,
    tool,
)
from rollmill.server.agent import Episode
from rollmill.testing import FakeModel, asgi_client
from rollmill_services.collector.app import create_app as create_collector
from rollmill_services.collector.settings import CollectorSettings
from rollmill_services.head.app import create_app as create_head
from rollmill_services.head.settings import HeadSettings
from rollmill_services.profiler.app import create_app as create_profiler
from rollmill_services.profiler.settings import ProfilerSettings


class Shop(Resources):
    @tool
    async def buy(self, session: Session) -> str:
        """Buy."""
        return "bought"

    async def verify(self, rollout: Rollout, session: Session) -> float:
        return 1.0


class Silent(Agent):
    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)


SERVICES: dict[str, Callable[[Path], ServiceApp]] = {
    "head": lambda _: create_head(HeadSettings(name="head")),
    "collector": lambda path: create_collector(CollectorSettings(name="collector", data_dir=path)),
    "profiler": lambda path: create_profiler(ProfilerSettings(name="profiler", data_dir=path)),
    "resources": lambda _: resources_app(Shop(ServiceSettings(name="shop"))),
    "model": lambda _: model_app(FakeModel(["yes"], ServiceSettings(name="policy"))),
    "agent": lambda _: agent_app(Silent(AgentSettings(name="a", model="policy", resources="shop"))),
}
EVERYWHERE = {
    "rollmill_request_seconds",
    "rollmill_requests_in_flight",
    "rollmill_requests_in_flight_limit",
    "rollmill_event_loop_lag_seconds",
    "rollmill_retries",
    "rollmill_ready",
    "rollmill_service_info",
    "process_cpu_seconds",
}
OWN = {
    "head": {"rollmill_leases", "rollmill_lease_age_seconds", "rollmill_registrations", "rollmill_leases_expired"},
    "collector": {
        "rollmill_rollouts",
        "rollmill_failed_attempts",
        "rollmill_reward",
        "rollmill_rollout_seconds",
        "rollmill_tokens",
        "rollmill_runs",
        "rollmill_rollouts_waiting",
        "rollmill_rollouts_in_flight",
        "rollmill_rollouts_left",
        "rollmill_rollouts_concurrency",
    },
    "profiler": {"rollmill_profiles_waiting"},
    "resources": {"rollmill_sessions_open"},
}


async def numbers(client: httpx.AsyncClient) -> dict[tuple[str, tuple[str, ...]], float]:
    answer = await client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, tuple(s.labels.values())): s.value for family in families for s in family.samples}


@pytest.mark.parametrize("kind", SERVICES)
async def test_every_kind_of_service_tells_its_numbers(kind: str, tmp_path: Path) -> None:
    async with asgi_client(SERVICES[kind](tmp_path)) as client:
        text = (await client.get("/metrics")).text
        found = {family.name for family in text_string_to_metric_families(text)}

    assert EVERYWHERE | OWN.get(kind, set()) <= found
    assert f'kind="{kind}"' in text


async def test_calls_are_counted_by_method_route_and_status() -> None:
    async with asgi_client(SERVICES["resources"](Path())) as client:
        for _ in range(3):
            await client.post("/seed_session", json={})
        await client.post("/verify", content=b"no json")
        await client.get("/version")
        found = await numbers(client)

    assert found["rollmill_request_seconds_count", ("POST", "/seed_session", "200")] == 3
    assert found["rollmill_request_seconds_count", ("POST", "/verify", "422")] == 1
    assert found["rollmill_request_seconds_count", ("GET", "/version", "200")] == 1
    assert found["rollmill_request_seconds_bucket", ("POST", "/seed_session", "200", "+Inf")] == 3
    assert found["rollmill_request_seconds_sum", ("POST", "/seed_session", "200")] > 0
    assert found["rollmill_sessions_open", ()] == 3
    assert found["rollmill_requests_in_flight", ()] == 1  # the question itself


async def test_no_client_can_make_up_labels() -> None:
    async with asgi_client(SERVICES["head"](Path())) as client:
        for number in range(20):
            await client.get(f"/nothing/{number}")
            await client.get(f"/v1/services/name-{number}")
            await client.request(f"METHOD{number}", "/v1/services")
        text = (await client.get("/metrics")).text
        found = await numbers(client)

    assert found["rollmill_request_seconds_count", ("GET", "other", "404")] == 20
    assert found["rollmill_request_seconds_count", ("GET", "/v1/services/{name}", "404")] == 20
    assert found["rollmill_request_seconds_count", ("other", "/v1/services", "405")] == 20
    assert "name-1" not in text
    assert "METHOD1" not in text


async def test_the_numbers_need_the_token() -> None:
    async with asgi_client(create_head(HeadSettings(token=SecretStr("t0ken")))) as client:
        refused = await client.get("/metrics")
        shown = await client.get("/metrics", headers={"authorization": "Bearer t0ken"})

    assert (refused.status_code, shown.status_code) == (401, 200)
    assert 'status="401"' in shown.text


async def test_the_head_tells_its_leases_and_where_prometheus_finds_them() -> None:
    async with asgi_client(SERVICES["head"](Path())) as client:
        for url in ("http://w:1", "http://w:2/behind/"):
            await client.post("/v1/services", json={"name": "weather", "kind": "resources", "url": url, "version": "1"})
        found = await numbers(client)
        targets = (await client.get("/v1/scrape_targets")).json()

    assert found["rollmill_leases", ("weather", "resources", "ready")] == 2
    assert found["rollmill_registrations_total", ()] == 2
    assert 0 <= found["rollmill_lease_age_seconds", ("weather",)] < 60
    assert [target["targets"] for target in targets] == [["w:1"], ["w:2"]]
    assert targets[1]["labels"] == {
        "__scheme__": "http",
        "__metrics_path__": "/behind/metrics",
        "service": "weather",
    }
