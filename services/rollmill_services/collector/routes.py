from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from rollmill.contracts.problem import problems
from rollmill.contracts.runs import RunChange, RunList, RunStatus
from rollmill.server.app_state import from_state
from rollmill_services.collector.following import rollout_lines, tied
from rollmill_services.collector.requests import REQUEST_BODY, read_run_request
from rollmill_services.collector.runs import Runs

NDJSON = "application/x-ndjson"

router = APIRouter(tags=["runs"])


RunsDep = Annotated[Runs, Depends(from_state("runs"))]


@router.post("/v1/runs", status_code=202, responses=problems(404, 409, 413, 429), openapi_extra=REQUEST_BODY)
async def create(request: Request, response: Response, runs: RunsDep) -> RunStatus:
    """Start a run. The same id and content again is the same run."""
    run_request, uploaded = await read_run_request(request)
    status = await runs.create(run_request, uploaded)
    response.headers["location"] = f"/v1/runs/{status.run_id}"
    return status


@router.get("/v1/runs")
async def list_runs(runs: RunsDep) -> RunList:
    """List the runs, newest first."""
    return RunList(runs=await runs.list())


@router.get("/v1/runs/{run_id}", responses=problems(404))
async def status(run_id: str, runs: RunsDep) -> RunStatus:
    """Return a run's counts, rate, remaining time and mean rewards."""
    return runs.status(run_id)


@router.get("/v1/runs/{run_id}/rollouts", response_class=StreamingResponse, responses=problems(404))
async def rollouts(
    run_id: str,
    runs: RunsDep,
    follow: bool = False,
    from_line: Annotated[int, Query(ge=0)] = 0,
) -> StreamingResponse:
    """Stream a run's rollouts as NDJSON; the last line is an event that says how the run stands."""
    runs.status(run_id)
    return StreamingResponse(rollout_lines(runs, run_id, from_line=from_line, follow=follow), media_type=NDJSON)


@router.post("/v1/runs/{run_id}/cancel", responses=problems(404))
async def cancel(run_id: str, runs: RunsDep) -> RunStatus:
    """Stop a run. What is settled stays; `resume` goes on from there."""
    return await runs.cancel(run_id)


@router.post("/v1/runs/{run_id}/pause", responses=problems(404, 409))
async def pause(run_id: str, runs: RunsDep) -> RunStatus:
    """Start no further rollouts until the run is resumed."""
    return await runs.pause(run_id)


@router.post("/v1/runs/{run_id}/resume", responses=problems(404, 409, 429))
async def resume(run_id: str, runs: RunsDep) -> RunStatus:
    """Go on with a paused, interrupted, stopped, cancelled or failed run."""
    return await runs.resume(run_id)


@router.patch("/v1/runs/{run_id}", responses=problems(404, 409))
async def change(run_id: str, body: RunChange, runs: RunsDep) -> RunStatus:
    """Change the concurrency of a run at work."""
    return await runs.set_concurrency(run_id, body.concurrency)


@router.post(
    "/collect", response_class=StreamingResponse, responses=problems(404, 409, 413, 429), openapi_extra=REQUEST_BODY
)
async def collect(request: Request, runs: RunsDep, attached: bool = False) -> StreamingResponse:
    """Start a run and stream its rollouts. `attached=true` cancels the run when the client leaves."""
    run_request, uploaded = await read_run_request(request)
    started = await runs.create(run_request, uploaded)
    lines = rollout_lines(runs, started.run_id, from_line=0, follow=True)
    active = runs.active(started.run_id)
    if attached and active is not None:
        lines = tied(runs, active, lines)
    headers = {"x-rollmill-run": started.run_id, "location": f"/v1/runs/{started.run_id}"}
    return StreamingResponse(lines, media_type=NDJSON, headers=headers)
