"""Writes a profile as the answer that was asked for."""

from io import BytesIO
from typing import TYPE_CHECKING

from rollmill.contracts.json import JsonObject, dumps
from rollmill_services.profiler.requests import View
from rollmill_services.profiler.views import Chosen, Profiled

if TYPE_CHECKING:
    from pandas import DataFrame

_TASKS_IN_JSON = 100


def render(profiled: Profiled, view: View) -> bytes:
    """Return the body of an answer."""
    chosen = Chosen(profiled, view.filter)
    match view.format:
        case "json":
            return dumps(_json(chosen, view))
        case "html":
            return _html(chosen)
        case "csv":
            return str(_table(chosen, view).to_csv(index=False)).encode()
        case "parquet":
            buffer = BytesIO()
            _table(chosen, view).to_parquet(buffer, index=False)
            return buffer.getvalue()


def _json(chosen: Chosen, view: View) -> JsonObject:
    profiled = chosen.profiled
    body: JsonObject = {"run_id": profiled.run_id, "state": profiled.state}
    if view.filter is not None:
        body["filter"] = view.filter
    if view.level in (None, "summary"):
        body["completion"] = profiled.profile.completion
    if view.level == "summary":
        body["summaries"] = chosen.summaries()
    if view.level in (None, "agent"):
        body["agents"] = chosen.agent_rows()
    if view.level in (None, "task"):
        limit = view.limit or _TASKS_IN_JSON
        tasks = chosen.task_rows(view.offset, limit)
        body |= {"tasks": tasks, "tasks_total": chosen.total, "offset": view.offset, "limit": limit}
    return body


def _table(chosen: Chosen, view: View) -> "DataFrame":
    if view.level == "summary":
        return chosen.estimate_table()
    if view.level == "agent":
        return chosen.agent_table()
    return chosen.task_table(view.offset, view.limit)


def _html(chosen: Chosen) -> bytes:
    from rollmill.report import made_of, render_report

    profiled = chosen.profiled
    made = made_of(profiled.columns(), profiled.manifest)
    return render_report(
        profiled.run_id or "Profile",
        chosen.summaries(),
        completion=profiled.profile.completion,
        rollouts=profiled.rows,
        made=made if chosen.filter is None else {**made, "filter": chosen.filter},
    )
