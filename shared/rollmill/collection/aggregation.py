"""Metrics of each agent at the end of a run, read back from the run's own file."""

import asyncio
from collections.abc import Iterable

import structlog

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.reader import read_rollouts
from rollmill.artifacts.writer import write_atomically
from rollmill.client.directory import Directory
from rollmill.client.service_client import ServiceClient
from rollmill.client.services import AgentClient
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rows import Row, agent_name, light_row
from rollmill.errors import RollmillError

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 600.0


async def aggregate_run(files: RunFiles, agents: Iterable[str], client: ServiceClient | None) -> list[JsonObject]:
    """Compute the metrics of each agent and write them to the run's `_aggregate_metrics.json`.

    An environment with metrics of its own is asked through its agent's `/aggregate_metrics`; the standard metrics
    alone are computed here, without sending every row through two services. So are they when there is no client.

    Raises:
        RollmillError: an environment could not compute its metrics; names the agent.
    """
    entries = []
    for agent in sorted(agents):
        if client is not None and await _has_own_metrics(agent, client.directory):
            metrics = await _ask(files, agent, client)
        else:
            metrics = await asyncio.to_thread(_standard, files, agent)
        entries.append({rows.AGENT_REF: {"name": agent}, **_ordered(metrics)})
    await asyncio.to_thread(write_atomically, files.aggregate_metrics, _indented(entries))
    return entries


async def _has_own_metrics(agent: str, directory: Directory) -> bool:
    """An agent or resources server that does not say otherwise may have metrics of its own."""
    replicas = await directory.replicas(agent)
    name = replicas[0].info.capabilities.get("resources") if replicas else None
    resources = await directory.replicas(name) if isinstance(name, str) else ()
    return not resources or resources[0].info.capabilities.get("custom_metrics") is not False


async def _ask(files: RunFiles, agent: str, client: ServiceClient) -> JsonObject:
    body = await asyncio.to_thread(lambda: dumps({"verify_responses": list(map(light_row, _of(files, agent)))}))
    try:
        return await AgentClient(client).aggregate_metrics(agent, body, timeout=TIMEOUT_SECONDS)
    except RollmillError as error:
        error.detail = f"metrics of {agent}: {error.detail}"
        raise


def _standard(files: RunFiles, agent: str) -> JsonObject:
    from rollmill.artifacts.column_table import ColumnTable  # pandas is loaded at the end of a run, not at its start
    from rollmill.artifacts.columns import read_rollout_columns
    from rollmill.metrics.aggregate import aggregate_table

    columns = read_rollout_columns(files, read_manifest(files.manifest))
    return aggregate_table(ColumnTable(columns.of_agent(agent)))


def _of(files: RunFiles, agent: str) -> Iterable[Row]:
    return (row for row in read_rollouts(files.rollouts) if agent_name(row) == agent)


def _ordered(metrics: JsonObject) -> JsonObject:
    first = ("agent_metrics", "key_metrics", "group_level_metrics")
    return {name: metrics[name] for name in first if name in metrics} | {
        name: value for name, value in metrics.items() if name not in first
    }


def _indented(value: list[JsonObject]) -> bytes:
    import orjson

    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
