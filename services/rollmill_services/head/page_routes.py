from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field

from rollmill.contracts.problem import problems
from rollmill.contracts.wire import WireModel
from rollmill.errors import UnauthorizedError
from rollmill.server.app_state import from_state
from rollmill_services.head.assets import INDEX, Assets
from rollmill_services.head.gate import GATEWAY, LOGIN, LOGOUT, PAGE
from rollmill_services.head.gateway import Behind, Gateway
from rollmill_services.head.probing import Probes
from rollmill_services.head.routes import RegistryDep, services
from rollmill_services.head.sessions import COOKIE, PageSessions

router = APIRouter(tags=["page"])


class Login(WireModel):
    """Body of `POST /login`."""

    token: str = Field(max_length=4096)
    """The suite's token, as `rollmill token` prints it."""


class Latencies(WireModel):
    """Answer of `GET /v1/latencies`."""

    milliseconds: dict[str, float | None]
    """By instance id: round trip of `GET /livez` from the head; null when there was no good answer within a second."""


AssetsDep = Annotated[Assets, Depends(from_state("assets"))]
SessionsDep = Annotated[PageSessions, Depends(from_state("sessions"))]
GatewayDep = Annotated[Gateway, Depends(from_state("gateway"))]
ProbesDep = Annotated[Probes, Depends(from_state("probes"))]


@router.get("/", include_in_schema=False)
async def root() -> Response:
    """Lead to the page."""
    return RedirectResponse(PAGE + "/", 307)


@router.get(PAGE + "/static/{name:path}", include_in_schema=False)
async def asset(name: str, request: Request, assets: AssetsDep) -> Response:
    """Return a file of the page."""
    return _file(name, request, assets)


@router.get(PAGE, include_in_schema=False)
@router.get(PAGE + "/{view:path}", include_in_schema=False)
async def page(request: Request, assets: AssetsDep) -> Response:
    """Return the page; which view it shows is its own matter."""
    return _file(INDEX, request, assets)


@router.post(LOGIN, status_code=204, response_class=Response, responses=problems(401, 403))
async def login(body: Login, request: Request, sessions: SessionsDep) -> Response:
    """Trade the token for a session, in a cookie that no script can read and no other site can use."""
    if not sessions.accepts(body.token):
        raise UnauthorizedError("this is not the token: 'rollmill token' prints it")
    answer = Response(status_code=204)
    answer.set_cookie(
        COOKIE,
        sessions.issue(),
        max_age=int(sessions.seconds),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post(LOGOUT, status_code=204, response_class=Response, responses=problems(403))
async def logout() -> Response:
    """Forget the session in this browser."""
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@router.get("/v1/latencies")
async def latencies(registry: RegistryDep, probes: ProbesDep) -> Latencies:
    """Measure how long each live replica takes to answer."""
    return Latencies(milliseconds=await probes.latencies(registry.services()))


router.add_api_route(GATEWAY + "head/v1/services", services, include_in_schema=False)
router.add_api_route(GATEWAY + "head/v1/latencies", latencies, include_in_schema=False)


@router.api_route(GATEWAY + "{kind}/{path:path}", methods=["GET", "POST", "PATCH"], include_in_schema=False)
async def passed_on(kind: Behind, path: str, request: Request, gateway: GatewayDep) -> Response:
    """Pass the page's questions on to the collector or the profiler."""
    return await gateway.call(
        kind,
        request.method,
        f"/{path}",
        query=request.url.query,
        body=await request.body(),
        content_type=request.headers.get("content-type", ""),
    )


def _file(name: str, request: Request, assets: Assets) -> Response:
    found = assets.get(name)
    headers = {"etag": found.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, media_type=found.media_type, headers={**headers, "content-encoding": "gzip"})
    return Response(found.body, media_type=found.media_type, headers=headers)
