"""Writes a profile as the answer that was asked for."""

from itertools import islice

from rollmill.contracts.json import JsonObject, dumps
from rollmill_services.profiler.profiler import Profiled
from rollmill_services.profiler.requests import View

_TASKS_IN_JSON = 100


def render(profiled: Profiled, view: View) -> bytes:
    """Return the body of an answer."""
    return _csv(profiled, view).encode() if view.format == "csv" else dumps(_json(profiled, view))


def _json(profiled: Profiled, view: View) -> JsonObject:
    profile = profiled.profile
    body: JsonObject = {"run_id": profiled.run_id, "state": profiled.state}
    if view.level in (None, "summary"):
        body["completion"] = profile.completion
    if view.level in (None, "summary", "agent"):
        body["agents"] = profile.reward_profile.agents
    if view.level in (None, "task"):
        limit = view.limit or _TASKS_IN_JSON
        tasks = islice(profile.reward_profile.iter_tasks(), view.offset, view.offset + limit)
        total = profile.completion["complete_tasks"] + profile.completion["partial_tasks"]
        body |= {"tasks": list(tasks), "tasks_total": total, "offset": view.offset, "limit": limit}
    return body


def _csv(profiled: Profiled, view: View) -> str:
    from pandas import DataFrame

    profile = profiled.profile
    if view.level == "summary":
        row = {"run_id": profiled.run_id, "state": profiled.state, **profile.completion}
        return str(DataFrame([row]).to_csv(index=False))
    if view.level == "agent":
        return str(profile.agents.to_csv(index=False))
    end = None if view.limit is None else view.offset + view.limit
    return str(profile.tasks.iloc[view.offset : end].to_csv(index=False))
