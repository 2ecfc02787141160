"""The guides to agents and to environments that are stepped do what they say: each block is executed."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from rollmill import Environment, InputError, Rollout, ServiceSettings, Session
from rollmill.config.topology import parse_topology, startup_order
from rollmill.contracts.json import JsonValue
from rollmill_services.resources.counter.app import create_app

if TYPE_CHECKING:
    from tests.conftest import Serve

GUIDES = Path(__file__).parents[2] / "docs/guides"
ENVIRON = {f"{who}_{what}": "http://localhost:8000/v1" for who in ("POLICY", "USER") for what in ("BASE_URL", "MODEL")}


def blocks(guide: str, language: str) -> list[str]:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def executed(*parts: str, **given: JsonValue) -> dict[str, JsonValue]:
    names: dict[str, JsonValue] = {"__name__": "guide", **given}
    for part in parts:
        exec(compile(part, "guide", "exec"), names)
    return names


def guess() -> Environment:
    environment: Environment = executed(blocks("stepped-environment.md", "python")[0])["Guess"]()
    return environment


async def test_the_test_of_the_guide_passes() -> None:
    names = executed(*blocks("stepped-environment.md", "python"), Rollout=Rollout)
    [test] = [value for name, value in names.items() if name.startswith("test_")]
    await test()


@pytest.mark.parametrize("action", ["", "forty-two", "²", "-1", "\ud800", "9" * 1_000_000])
async def test_the_guides_environment_answers_every_action_and_stops_after_ten(action: str) -> None:
    environment, session = guess(), Session("s", {"secret": 42})
    await environment.begin(session)
    steps = [await environment.advance(action, session) for _ in range(10)]
    assert [step.truncated for step in steps] == [False] * 9 + [True]


async def test_the_guides_environment_refuses_a_row_without_its_field() -> None:
    with pytest.raises(InputError, match="secret"):
        await guess().seed_session(Session("s", {}), {})


@pytest.mark.parametrize(
    "text", [*blocks("agents.md", "yaml"), *blocks("stepped-environment.md", "yaml")], ids=["user", "remote", "guess"]
)
def test_every_topology_of_the_guides_is_valid(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guess.py").write_text(blocks("stepped-environment.md", "python")[0], encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    topology = parse_topology(text, base_dir=tmp_path, environ=ENVIRON)
    assert set(startup_order(topology)) == set(topology.services)


async def test_a_client_of_the_protocol_calls_a_tool_as_the_guide_shows(serve: "Serve") -> None:
    [block] = blocks("agents.md", "python")
    add_five = executed(block, httpx2=httpx2, Client=Client, streamable_http_client=streamable_http_client)["add_five"]
    async with serve(create_app(ServiceSettings(serve_mcp=True))) as url, httpx.AsyncClient(base_url=url) as client:
        seeded = await client.post("/seed_session", json={"initial_count": 1, "expected_count": 3})
        await add_five({"server_url": f"{url}/mcp", "authorization": seeded.headers["x-rollmill-mcp-token"]})
        assert (await client.post("/get_counter_value", json={})).json() == {"count": 6}
