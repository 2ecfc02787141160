"""The dashboard and the alert rules ask for numbers that there are: every name and label is in a real `/metrics`."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from rollmill.config.topology import load_topology
from rollmill.contracts.json import JsonObject
from rollmill.testing import asgi_client
from rollmill_services.models.openai_compatible.app import create_app as create_model
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings

if TYPE_CHECKING:
    from tests.integration.conftest import NetworkTopology

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy/observability"
DASHBOARD = FOLDER / "grafana/dashboards/rollmill.json"
OF_PROMETHEUS = {"up": {"job", "instance", "service"}}
OF_TARGETS = {"job", "instance", "service"}
"""Labels that Prometheus adds: those of the scrape, and what `/v1/scrape_targets` tells."""
ONLY_IN_TROUBLE = {"rollmill_retries_total": {"to", "reason"}, "rollmill_engine_retries_total": {"reason"}}
"""Labels of what nothing was counted of, since nothing went wrong."""
VARIABLES = {"$__rate_interval": "5m", "$service": ".*"}


def content(path: Path) -> JsonObject:
    found: JsonObject = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def alerts() -> dict[str, str]:
    groups = content(FOLDER / "alerts.yml")["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def queries() -> dict[str, str]:
    """The dashboard's expressions, its variables replaced as Grafana does."""
    found = {}
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            found[f"{panel['title']} {target['refId']}"] = text
    return found


EXPRESSIONS = {**alerts(), **queries()}


def nodes(node: promql_parser.Expr) -> Iterator[promql_parser.Expr]:
    """Yield an expression and all that it is made of."""
    yield node
    for part in ("expr", "lhs", "rhs", "vector_selector"):
        if (child := getattr(node, part, None)) is not None:
            yield from nodes(child)
    for child in getattr(node, "args", None) or ():
        yield from nodes(child)


def asked(expression: str) -> tuple[set[str], set[str]]:
    """Return the metrics that an expression names, and the labels that it matches or groups by."""
    names, labels = set(), set()
    for node in nodes(promql_parser.parse(expression)):
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None
            names.add(node.name)
            labels |= {matcher.name for matcher in node.matchers.matchers}
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            labels |= set(node.modifier.labels)
    return names, labels


def note(found: dict[str, set[str]], answer: str) -> None:
    """Add the names and labels of one answer; a number that has none yet is there without labels."""
    for family in text_string_to_metric_families(answer):
        for suffix in {"counter": ["_total"], "gauge": [""]}.get(family.type, ["_bucket", "_sum", "_count"]):
            found.setdefault(family.name + suffix, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)


@pytest.fixture
async def told(network_topology: "NetworkTopology", tmp_path: Path) -> dict[str, set[str]]:
    """Which labels each number has, in the answers of all services of a deployment that has done some work."""
    topology = load_topology(ROOT / "examples/weather.yaml")
    failing = {"responses_create_params": {"input": 1}, "agent_ref": {"name": "weather_agent"}}
    found: dict[str, set[str]] = {}
    async with network_topology(topology, data_dir=tmp_path) as network:
        bearer = {"authorization": f"Bearer {network.token}"}
        async with httpx.AsyncClient(headers=bearer, timeout=60) as client:
            (tmp_path / "weather.jsonl").write_bytes((ROOT / "examples/data/weather.jsonl").read_bytes())
            collector = network.urls["collector"][0]
            for body in ({"id": "a", "input": "weather.jsonl"}, {"id": "b", "rows": [failing], "max_attempts": 1}):
                await client.post(f"{collector}/collect", json=body)
            for url in [url for urls in network.urls.values() for url in urls]:
                note(found, (await client.get(f"{url}/metrics")).text)
    engine = {"name": "engine", "base_url": "http://127.0.0.1:9", "model": "m"}
    async with asgi_client(create_model(OpenAICompatibleSettings.model_validate(engine))) as client:
        note(found, (await client.get("/metrics")).text)
    return found


async def test_every_expression_asks_for_numbers_and_labels_that_there_are(told: dict[str, set[str]]) -> None:
    unknown = []
    for where, expression in EXPRESSIONS.items():
        names, labels = asked(expression)
        assert names, where
        known = OF_TARGETS.union(*(told.get(name, set()) | ONLY_IN_TROUBLE.get(name, set()) for name in names))
        unknown += [(where, name) for name in names if name not in told and name not in OF_PROMETHEUS]
        unknown += [(where, label) for label in labels - known]

    assert unknown == []
    assert {"agent", "outcome"} <= told["rollmill_rollouts_total"]
    assert {"boundary", "type"} <= told["rollmill_failed_attempts_total"]


def test_the_search_finds_what_is_wrong() -> None:
    assert asked('sum by (le, x) (rate(a_bucket{y="1"}[5m])) / b > 1 unless absent(c == 0)') == (
        {"a_bucket", "b", "c"},
        {"le", "x", "y"},
    )


@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_how_bad_it_is_and_what_to_do(name: str) -> None:
    (rule,) = [rule for g in content(FOLDER / "alerts.yml")["groups"] for rule in g["rules"] if rule["alert"] == name]

    assert rule["labels"]["severity"] in ("warning", "critical")
    assert all(rule["annotations"][part] for part in ("summary", "description"))


def test_the_dashboard_has_distinct_panels_that_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23


def test_prometheus_is_told_of_its_rules_and_shows_the_token_everywhere() -> None:
    config = content(FOLDER / "prometheus.yml")
    shown = [job["authorization"] for job in config["scrape_configs"]]
    shown += [place["authorization"] for job in config["scrape_configs"] for place in job.get("http_sd_configs", ())]

    assert [FOLDER / name for name in config["rule_files"]] == [FOLDER / "alerts.yml"]
    assert shown == [{"credentials_file": "/prometheus/token"}] * 3
    assert {job["job_name"] for job in config["scrape_configs"]} == {"rollmill", "rollmill-head"}


def has_compose() -> bool:
    asked = ["docker", "compose", "version"]
    return shutil.which("docker") is not None and subprocess.run(asked, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_compose(), reason="NOT TESTED: docker compose is not installed")
def test_compose_understands_the_override() -> None:
    files = ["--file", "docker-compose.yml", "--file", "docker-compose.observability.yml"]
    command = ["docker", "compose", "--env-file", os.devnull, *files, "config", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_compose_file_mounts_files_that_there_are_and_publishes_on_loopback_only() -> None:
    services = content(ROOT / "docker-compose.observability.yml")["services"]
    mounts = [v.split(":")[0] for one in services.values() for v in one.get("volumes", ()) if v.startswith("./")]
    ports = [port for one in services.values() for port in one.get("ports", ())]

    assert len(mounts) == 4
    assert [mount for mount in mounts if not (ROOT / mount).exists()] == []
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
