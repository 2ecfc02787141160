"""What the code says about the spans of a trace. `rollmill.observability.otel` makes them OpenTelemetry's."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Literal, Protocol, TypeAlias

import structlog

from rollmill.contracts.attempts import AttemptId
from rollmill.errors import ConfigError

log = structlog.get_logger(__name__)

SpanKind: TypeAlias = Literal["internal", "server", "client"]
Attribute: TypeAlias = str | int | float | bool

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class Span(Protocol):
    """A piece of work that is going on."""

    def note(self, name: str, value: Attribute) -> None:
        """Add an attribute: never what a task, a model or an error says, since spans leave the deployment."""

    def fail(self, kind: str) -> None:
        """Mark it as failed; `kind` is a problem's slug, or the name of an exception's class."""


class Tracer(Protocol):
    """Begins spans. Each is a child of what the call's context says, and is what it says inside the block."""

    def span(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Attribute] | None = None
    ) -> AbstractContextManager[Span]:
        """Span the block; an exception that leaves it marks the span as failed."""

    def attempt(self, attempt: AttemptId, agent: str) -> AbstractContextManager[Span]:
        """Span one attempt at a rollout. All attempts at it are one trace, also those after a resume."""


class _NoSpan:
    """Both the span and the block around it, so that nothing is made for a call."""

    def note(self, name: str, value: Attribute) -> None:
        """See `Span.note`."""

    def fail(self, kind: str) -> None:
        """See `Span.fail`."""

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was begun."""


class NoTracer:
    """Traces nothing; a trace that the caller began goes on with every call nevertheless."""

    def __init__(self) -> None:
        self._span = _NoSpan()

    def span(
        self, name: str, kind: SpanKind, attributes: Mapping[str, Attribute] | None = None
    ) -> AbstractContextManager[Span]:
        """See `Tracer.span`."""
        return self._span

    def attempt(self, attempt: AttemptId, agent: str) -> AbstractContextManager[Span]:
        """See `Tracer.attempt`."""
        return self._span


NO_TRACER: Final[Tracer] = NoTracer()


@contextmanager
def opened_tracer(environ: Mapping[str, str], service: str) -> Iterator[Tracer]:
    """Hand out the tracer that the standard `OTEL_*` variables ask for, and send what is left of its spans at the end.

    Args:
        environ: of this process. OpenTelemetry reads where to, how much and how often from it as well.
        service: name of this process, unless `OTEL_SERVICE_NAME` says another.

    Raises:
        ConfigError: an exporter is asked for that there is not.
    """
    exporter = _exporter(environ)
    if not exporter:
        yield NO_TRACER
        return
    try:
        from rollmill.observability.otel import OtelTracer, exporting_provider
    except ImportError:  # the variables may be the platform's, and meant for others
        log.warning("traces_off", error="OTEL_* variables ask for traces: pip install 'rollmill[otel]'")
        yield NO_TRACER
        return
    provider = exporting_provider(exporter, environ.get("OTEL_SERVICE_NAME") or service)
    try:
        yield OtelTracer(provider)
    finally:
        provider.shutdown()


def _exporter(environ: Mapping[str, str]) -> str:
    """Return the exporter that is asked for, empty for none."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    default = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none"
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or default
    if exporter not in ("none", "otlp", "console"):
        raise ConfigError(f"OTEL_TRACES_EXPORTER={exporter!r}: must be otlp, console or none")
    return "" if exporter == "none" else exporter
