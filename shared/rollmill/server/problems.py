"""Makes FastAPI answer every error as an RFC 9457 problem document."""

from collections.abc import Callable, Iterable

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from rollmill.contracts.json import JsonObject, NestingError, dumps
from rollmill.errors import InputError, RollmillError
from rollmill.server.calls import Answer, problem_answer

log = structlog.get_logger(__name__)

PROBLEM_MEDIA_TYPE = "application/problem+json"


def add_problem_handlers(app: FastAPI, *, hidden: Callable[[], Iterable[str]] = tuple) -> None:
    """Register the handlers on an application; `hidden` tells the secrets that no answer may show."""

    async def _rollmill_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, RollmillError):
            raise error
        return to_response(problem_answer(error, instance=request.url.path, hidden=hidden()))

    async def _validation_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestValidationError):
            raise error
        faults = [_fault(item) for item in error.errors()]
        detail = "; ".join(f"{fault['pointer']}: {fault['detail']}" for fault in faults)
        return await _rollmill_error(request, InputError(detail, errors=faults))

    async def _http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        if isinstance(error.__cause__, RollmillError):  # FastAPI hides what went wrong while it read the body
            return await _rollmill_error(request, error.__cause__)
        return _router_error(request, error)

    async def _nested_too_deeply(request: Request, error: Exception) -> Response:
        return await _rollmill_error(request, InputError(str(error)))  # nothing of ours is: it was sent

    app.add_exception_handler(RollmillError, _rollmill_error)
    app.add_exception_handler(NestingError, _nested_too_deeply)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)


def _fault(item: JsonObject) -> JsonObject:
    place, *path = [str(part) for part in item["loc"]]
    pointer = "/" + "/".join(path) if place == "body" else f"{place}:{'.'.join(path)}"
    return {"pointer": pointer, "detail": item["msg"]}


def _router_error(request: Request, error: HTTPException) -> Response:
    """An error of the router itself: `about:blank`, so that a wrong path is not mistaken for a missing thing."""
    body = {
        "type": "about:blank",
        "title": str(error.detail),
        "status": error.status_code,
        "detail": f"{request.method} {request.url.path}: {error.detail}",
        "instance": request.url.path,
    }
    return Response(dumps(body), error.status_code, media_type=PROBLEM_MEDIA_TYPE, headers=error.headers)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    log.error("request_failed", path=request.url.path, exc_info=error)
    hidden = RollmillError("the service failed; its log has the request id")
    return to_response(problem_answer(hidden, instance=request.url.path))


def to_response(answer: Answer) -> Response:
    """Return a whole answer as FastAPI and Starlette take it."""
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body, answer.status, headers=headers)
