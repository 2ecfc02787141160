from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.problem import problems
from rollmill.contracts.wire import WireModel
from rollmill.server.app_state import from_state
from rollmill_services.profiler.rollouts import Rollouts
from rollmill_services.profiler.routes import RunId, SlotsDep

router = APIRouter(prefix="/v1/runs/{run_id}/rollouts", tags=["rollouts"])

_JSON = "application/json"


class TableView(WireModel):
    """The query of `GET /v1/runs/{id}/rollouts/table`."""

    filter: str | None = Field(default=None, min_length=1, max_length=4000)
    """Only rollouts for which this holds, such as `reward < 1 and turns > 4`; `columns` of the answer has the names.
    `num_rollouts`, `mean_reward`, `std_reward` and `pass_rate` are those of the rollout's task."""
    sort: str | None = Field(default=None, min_length=1, max_length=200)
    """A column; `-column` for the largest first."""
    q: str | None = Field(default=None, min_length=1, max_length=1000)
    """Only rollouts in whose row this text is found."""
    offset: int = Field(default=0, ge=0)
    limit: int = Field(default=100, ge=1, le=1000)


class TableBody(WireModel):
    """Some rollouts of a run."""

    run_id: str
    total: int
    """Rollouts that were asked for, on all pages."""
    offset: int
    columns: list[str]
    """Names for filters and sorting."""
    rollouts: list[JsonObject]
    """`task`, `repeat`, `agent`, `reward`, `output_tokens`, `turns`, `seconds` and `failure`; null when unknown."""


class RolloutBody(WireModel):
    """One rollout, whole."""

    run_id: str
    task: int
    repeat: int
    row: JsonObject | None
    """Its line of the rollouts file; null when every attempt failed."""
    attempts: list[JsonObject]
    """The lines of its failed attempts."""
    input: JsonObject | None
    """Its materialized input row."""


class TimelineView(WireModel):
    """The query of `GET /v1/runs/{id}/rollouts/timeline`."""

    buckets: int = Field(default=60, ge=1, le=500)
    agent: str | None = Field(default=None, max_length=200)


class TimelineBody(WireModel):
    """The finished rollouts in order of completion, in pieces of about the same number."""

    run_id: str
    began_at: float | None
    """Unix seconds."""
    buckets: list[JsonObject]
    """`rollouts`, `mean_reward`, `output_tokens` and `until` (Unix seconds); null when unknown."""


RolloutsDep = Annotated[Rollouts, Depends(from_state("rollouts"))]
Index = Annotated[int, Path(ge=0, lt=2**63)]


@router.get("/table", response_model=TableBody, responses=problems(404, 504))
async def table(run_id: RunId, view: Annotated[TableView, Query()], rollouts: RolloutsDep, slots: SlotsDep) -> Response:
    """Return some rollouts of a run, filtered, sorted and searched."""

    def work() -> bytes:
        page = rollouts.page(
            run_id, filter=view.filter, sort=view.sort, text=view.q, offset=view.offset, limit=view.limit
        )
        return dumps(page)

    return Response(await slots.run(work), media_type=_JSON)


@router.get("/timeline", response_model=TimelineBody, responses=problems(404, 504))
async def timeline(
    run_id: RunId, view: Annotated[TimelineView, Query()], rollouts: RolloutsDep, slots: SlotsDep
) -> Response:
    """Return how rewards came in over time."""

    def work() -> bytes:
        return dumps(rollouts.timeline(run_id, buckets=view.buckets, agent=view.agent))

    return Response(await slots.run(work), media_type=_JSON)


@router.get("/{task}/{repeat}", response_model=RolloutBody, responses=problems(404, 504))
async def rollout(run_id: RunId, task: Index, repeat: Index, rollouts: RolloutsDep, slots: SlotsDep) -> Response:
    """Return one rollout, whole."""

    def work() -> bytes:
        return dumps(rollouts.rollout(run_id, task, repeat))

    return Response(await slots.run(work), media_type=_JSON)
