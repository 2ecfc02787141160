import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.errors import InputError
from rollmill.server.calls import Answer, Call, HotRoute, json_answer

ComputeMetrics: TypeAlias = Callable[[list[list[Row]]], JsonObject]
GetKeyMetrics: TypeAlias = Callable[[JsonObject], JsonObject]


def aggregate_route(compute_metrics: ComputeMetrics | None, get_key_metrics: GetKeyMetrics | None) -> HotRoute:
    """Make `POST /aggregate_metrics`; the statistics run in a thread, beside the calls."""

    async def aggregate(call: Call) -> Answer:
        rows = _rows(call.json_object())
        return json_answer(await asyncio.to_thread(_aggregate, rows, compute_metrics, get_key_metrics))

    return HotRoute("POST", "/aggregate_metrics", aggregate, "Statistics of verified rollouts")


def _rows(body: JsonObject) -> Sequence[Row]:
    rows = body.get("verify_responses")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        fault = {"pointer": "/verify_responses", "detail": "must be a list of objects"}
        raise InputError("verify_responses must be a list of objects", errors=[fault])
    return rows


def _aggregate(
    rows: Sequence[Row], compute_metrics: ComputeMetrics | None, get_key_metrics: GetKeyMetrics | None
) -> JsonObject:
    from rollmill.metrics import aggregate_metrics  # pandas is loaded by the first call, not at start

    return aggregate_metrics(rows, compute_metrics=compute_metrics, get_key_metrics=get_key_metrics)
