"""A token is rotated while services run: nobody is locked out, and the old one ends."""

import json
from typing import TYPE_CHECKING

import httpx

from rollmill.contracts.json import dumps

if TYPE_CHECKING:
    from tests.integration.conftest import Workplace

TOPOLOGY = """
services:
  policy: {kind: model, use: scripted}
  weather: {kind: resources, use: weather}
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
"""
TASK = {"responses_create_params": {"input": "What is the weather in Paris?"}, "agent_ref": {"name": "weather_agent"}}


def test_a_rotation_locks_nobody_out_and_the_next_one_ends_the_former_token(workplace: "Workplace") -> None:
    (workplace.path / "t.yaml").write_text(TOPOLOGY)
    (workplace.path / "tasks.jsonl").write_bytes(dumps(TASK) + b"\n")
    urls = {label: record.url for label, record in workplace.up().items()}
    tokens = [workplace.run("token").stdout.strip()]

    def statuses() -> list[set[int]]:
        """How services answer to each token, oldest first."""
        return [
            {httpx.get(url + "/version", headers={"authorization": f"Bearer {t}"}).status_code for url in urls.values()}
            for t in tokens
        ]

    for number in range(2):
        assert workplace.run("token", "--rotate").returncode == 0
        tokens.append(workplace.run("token").stdout.strip())
        collected = workplace.run("collect", "-c", "t.yaml", "--input", "tasks.jsonl", "--output", f"{number}.jsonl")
        assert collected.returncode == 0, collected.stderr
        assert "using the services at" in collected.stderr
        if number == 0:
            assert statuses() == [{200}, {200}]

    assert len(set(tokens)) == 3
    assert statuses() == [{401}, {200}, {200}]
    services = json.loads(workplace.run("status", "--json").stdout)["services"]
    assert len(services) == len(urls) - 1
