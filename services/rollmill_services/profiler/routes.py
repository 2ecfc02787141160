from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.problem import problems
from rollmill.contracts.runs import RUN_ID_PATTERN
from rollmill.server.app_state import from_state
from rollmill_services.profiler.profiler import Profiler
from rollmill_services.profiler.rendering import render
from rollmill_services.profiler.requests import (
    REQUEST_BODY,
    Comparison,
    ComparisonBody,
    Format,
    LiveBody,
    ProfileBody,
    RunView,
    View,
    parse_profile_request,
)
from rollmill_services.profiler.slots import Slots

router = APIRouter(prefix="/v1", tags=["profile"])

_MEDIA_TYPES: Final[dict[Format, str]] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "html": "text/html; charset=utf-8",
}
_TEXT: Final[JsonObject] = {"schema": {"type": "string"}}
_BYTES: Final[JsonObject] = {"schema": {"type": "string", "format": "binary"}}
_FORMATS: Final[dict[int | str, JsonObject]] = {
    200: {"content": {"text/csv": _TEXT, "text/html": _TEXT, "application/vnd.apache.parquet": _BYTES}}
}
_NO_SCRIPT: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'",
    "x-content-type-options": "nosniff",
}
"""A report shows what models wrote, which is hostile input: the page itself forbids scripts, and so does the answer."""


RunId = Annotated[str, Path(pattern=RUN_ID_PATTERN)]
ProfilerDep = Annotated[Profiler, Depends(from_state("profiler"))]
SlotsDep = Annotated[Slots, Depends(from_state("slots"))]


@router.get("/runs/{run_id}/profile", response_model=ProfileBody, responses={**problems(404, 504), **_FORMATS})
async def run_profile(
    run_id: RunId, view: Annotated[RunView, Query()], profiler: ProfilerDep, slots: SlotsDep
) -> Response:
    """Profile a run as it stands, also while it goes on."""

    def work() -> bytes:
        return render(profiler.of_run(run_id, allow_partial=view.allow_partial), view)

    return _answer(await slots.run(work), view)


@router.get("/runs/{run_id}/live", response_model=LiveBody, responses=problems(404, 504))
async def live(run_id: RunId, profiler: ProfilerDep, slots: SlotsDep) -> Response:
    """Return the statistics of a run that are kept up to date: asking again costs only what is new."""

    def work() -> bytes:
        return dumps(profiler.live(run_id))

    return Response(await slots.run(work), media_type=_MEDIA_TYPES["json"])


@router.post(
    "/profile", response_model=ProfileBody, responses={**problems(413, 504), **_FORMATS}, openapi_extra=REQUEST_BODY
)
async def profile(request: Request, view: Annotated[View, Query()], profiler: ProfilerDep, slots: SlotsDep) -> Response:
    """Profile posted rows, or files inside the data directory."""
    body = await request.body()

    def work() -> bytes:
        return render(profiler.of_request(parse_profile_request(body)), view)

    return _answer(await slots.run(work), view)


@router.get("/compare", response_model=ComparisonBody, responses=problems(404, 409, 504))
async def compare(asked: Annotated[Comparison, Query()], profiler: ProfilerDep, slots: SlotsDep) -> Response:
    """Set one run beside another, agent by agent, over the tasks that both have."""

    def work() -> bytes:
        return dumps(profiler.compare(asked.a, asked.b, force=asked.force))

    return Response(await slots.run(work), media_type=_MEDIA_TYPES["json"])


def _answer(body: bytes, view: View) -> Response:
    headers = _NO_SCRIPT if view.format == "html" else None
    return Response(body, media_type=_MEDIA_TYPES[view.format], headers=headers)
