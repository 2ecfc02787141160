"""One tree of errors for every process.

An error knows its HTTP status and its problem type. The server turns it into `application/problem+json`
(RFC 9457) and the client turns that back into the same class, so `except ServiceNotFoundError` works across
processes.
"""

from typing import ClassVar, Final

from rollmill.contracts.json import JsonObject, JsonValue

PROBLEM_PREFIX = "urn:rollmill:problem:"


class RollmillError(Exception):
    """Base of every error that Rollmill raises on purpose.

    Args:
        detail: what happened, for a person, with the fix when there is one.
        extensions: further members of the problem document, JSON values only.
    """

    slug: ClassVar[str] = "internal"
    title: ClassVar[str] = "Internal error"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str, /, **extensions: JsonValue) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extensions: JsonObject = extensions

    def __str__(self) -> str:
        return self.detail

    @property
    def retry_after(self) -> float | None:
        """Seconds the server asked to wait, when it did."""
        value = self.extensions.get("retry_after")
        return float(value) if isinstance(value, int | float) else None


class InputError(RollmillError):
    """The request, file or setting is wrong. `errors` lists every fault as `{pointer, detail}`."""

    slug, title, status = "invalid-request", "Invalid request", 422


class ConfigError(InputError):
    """A topology or a setting is wrong; the detail lists every problem with its YAML path."""

    slug, title = "invalid-config", "Invalid configuration"


class NotFoundError(RollmillError):
    """Something that was named does not exist."""

    slug, title, status = "not-found", "Not found", 404


class ServiceNotFoundError(NotFoundError):
    """No live instance is registered under this name."""

    slug, title = "service-not-found", "No such service"


class RunNotFoundError(NotFoundError):
    """The collector or profiler knows no run of this id."""

    slug, title = "run-not-found", "No such run"


class SessionNotFoundError(NotFoundError):
    """The session was never opened here, was closed, or was reaped after its idle time."""

    slug, title = "session-not-found", "No such session"


class RecordingNotFoundError(NotFoundError):
    """The recorded model has no rollout for this input."""

    slug, title = "recording-not-found", "No such recording"


class ConflictError(RollmillError):
    """The request contradicts what exists: an output file, a run id, a manifest."""

    slug, title, status = "conflict", "Conflict", 409


class PayloadTooLargeError(RollmillError):
    """The body is larger than the service accepts."""

    slug, title, status = "payload-too-large", "Payload too large", 413


class UnauthorizedError(RollmillError):
    """The bearer token is missing or wrong."""

    slug, title, status = "unauthorized", "Unauthorized", 401


class OverloadedError(RollmillError):
    """The service, or one behind it, asks for less load. `retry_after` says for how many seconds."""

    slug, title, status, retryable = "overloaded", "Overloaded", 503, True


class NotReadyError(OverloadedError):
    """The service is starting or draining."""

    slug, title = "not-ready", "Not ready"


class UpstreamError(RollmillError):
    """A service behind this one failed. Extensions: `service`, `upstream_status`, `upstream_type`, `retryable`."""

    slug, title, status = "upstream-failed", "Upstream failed", 502


class JudgeFailedError(UpstreamError):
    """A judge could not be asked, or gave no verdict that can be read; that says nothing about the rollout."""

    slug, title, retryable = "judge_failed", "Judge failed", True


class ConnectError(UpstreamError):
    """No connection could be made, so the request was certainly not processed."""

    slug, title, retryable = "connect-failed", "Connection failed", True


class ConnectionLostError(UpstreamError):
    """The connection broke after the request may have been sent: it may or may not have been processed."""

    slug, title, retryable = "connection-lost", "Connection lost", True


class ToolError(RollmillError):
    """Raised by a tool to tell the model what it did wrong; the rollout goes on."""

    slug, title, status = "tool-error", "Tool error", 400


class ToolFailedError(RollmillError):
    """A tool's own code broke. The model is told so without internals, and the rollout goes on."""

    slug, title, status = "tool-failed", "Tool failed", 500


class DeadlineError(RollmillError):
    """The deadline of the call passed before the answer was there."""

    slug, title, status = "deadline-passed", "Deadline passed", 504


REFUSED: Final = "refused"
"""Extension of a `DeadlineError`: the call arrived too late, and nothing was done about it. A caller that has time left
knows then that a clock was set meanwhile."""


class UpstreamTimeoutError(DeadlineError):
    """A service behind this one did not answer within the time given to it."""

    slug, title = "upstream-timeout", "Upstream timeout"


def is_retryable(error: RollmillError) -> bool:
    """Say whether the same call may succeed later; an upstream's own judgement wins over the class."""
    told = error.extensions.get("retryable")
    return told if isinstance(told, bool) else error.retryable


def _tree(cls: type[RollmillError]) -> dict[str, type[RollmillError]]:
    found = {cls.slug: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


def error_class(slug: str, status: int) -> type[RollmillError]:
    """Return the class for a problem slug; for an unknown one, the nearest by HTTP status."""
    known = _tree(RollmillError)
    if slug in known:
        return known[slug]
    by_status: dict[int, type[RollmillError]] = {
        401: UnauthorizedError,
        403: UnauthorizedError,
        404: NotFoundError,
        409: ConflictError,
        413: PayloadTooLargeError,
        422: InputError,
        429: OverloadedError,
        503: OverloadedError,
        504: DeadlineError,
    }
    return by_status.get(status, UpstreamError)


def to_problem(error: RollmillError, *, instance: str = "") -> JsonObject:
    """Render an error as an RFC 9457 problem document."""
    problem = {
        "type": PROBLEM_PREFIX + error.slug,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
    }
    if instance:
        problem["instance"] = instance
    return {**error.extensions, **problem}


def from_problem(problem: JsonObject, status: int) -> RollmillError:
    """Rebuild the error that a problem document describes; unknown members become extensions."""
    slug = str(problem.get("type", "")).removeprefix(PROBLEM_PREFIX)
    reserved = {"type", "title", "status", "detail", "instance"}
    extensions = {key: value for key, value in problem.items() if key not in reserved}
    detail = problem.get("detail") or problem.get("title") or f"HTTP {status}"
    return error_class(slug, status)(str(detail), **extensions)
