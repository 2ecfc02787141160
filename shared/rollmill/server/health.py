from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from rollmill.contracts.json import JsonObject
from rollmill.errors import NotReadyError
from rollmill.observability.meters import TEXT_FORMAT
from rollmill.server.runtime import Runtime


def health_router(runtime: Runtime, numbers: Callable[[], str]) -> APIRouter:
    """Make the four endpoints that every service has for whoever runs it.

    Args:
        runtime: of the service.
        numbers: makes the text of `/metrics`.
    """
    router = APIRouter(tags=["service"])

    @router.get("/livez", status_code=204, response_class=Response)
    async def livez() -> None:
        """Answer 204 while the process can answer at all."""

    @router.get("/readyz", status_code=204, response_class=Response)
    async def readyz() -> None:
        """Answer 204 when the service can serve, else 503 with the reason."""
        if runtime.not_ready:
            raise NotReadyError(runtime.not_ready, retry_after=1.0)

    @router.get("/version")
    async def version() -> JsonObject:
        """Say what this service is and what callers must know about it."""
        return runtime.description()

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Tell the numbers of this moment in the text format of Prometheus."""
        return Response(numbers(), media_type=TEXT_FORMAT)

    return router
