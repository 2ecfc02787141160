"""Spans of OpenTelemetry; needs the extra `otel`."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rollmill._version import __version__
from rollmill.context import TRACE_HEADER, get_context, reset_context, set_context
from rollmill.contracts.attempts import AttemptId
from rollmill.errors import RollmillError
from rollmill.observability.tracing import Attribute, SpanKind
from rollmill.observability.tracing import Span as SpanLike

_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
}


class _Ids(RandomIdGenerator):
    """Random ids, but for the span that was announced just before."""

    def __init__(self) -> None:
        self.announced: list[int] = []
        """A trace id and a span id, taken in this order."""

    def generate_trace_id(self) -> int:
        return self.announced.pop(0) if self.announced else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.announced.pop(0) if self.announced else super().generate_span_id()


class OtelTracer:
    """See `Tracer`.

    A rollout's trace id is the first half of the SHA-256 of `run_id/task:rollout`, and its first attempt has the next
    eight bytes as span id. So later attempts are its children without anybody having kept it, also in another process
    after a resume, and the trace of a line in a run's files is found without its being in the line.

    Args:
        provider: makes the spans; its ids become those of `exporting_provider`.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._ids = provider.id_generator = _Ids()
        self._sampler = provider.sampler
        self._tracer = provider.get_tracer("rollmill", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(self, name: str, kind: SpanKind, attributes: Mapping[str, Attribute] | None = None) -> Iterator[SpanLike]:
        """See `Tracer.span`."""
        parent = self._propagator.extract({TRACE_HEADER: get_context().traceparent}, Context())
        with self._begun(name, kind, parent, attributes) as span:
            yield span

    @contextmanager
    def attempt(self, attempt: AttemptId, agent: str) -> Iterator[SpanLike]:
        """See `Tracer.attempt`."""
        parent = Context()
        trace_id, span_id = rollout_ids(attempt)
        if attempt.attempt:
            sampled = self._sampler.should_sample(None, trace_id, "rollout").decision is Decision.RECORD_AND_SAMPLE
            flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
            first = NonRecordingSpan(SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags))
            parent = trace.set_span_in_context(first, parent)
        else:
            self._ids.announced = [trace_id, span_id]
        attributes: dict[str, Attribute] = {
            "rollmill.agent": agent,
            "rollmill.run": attempt.run_id,
            "rollmill.task": attempt.task,
            "rollmill.rollout": attempt.rollout,
            "rollmill.attempt": attempt.attempt,
        }
        with self._begun("rollout", "internal", parent, attributes) as span:
            yield span

    @contextmanager
    def _begun(
        self, name: str, kind: SpanKind, parent: Context, attributes: Mapping[str, Attribute] | None
    ) -> Iterator[SpanLike]:
        # Neither the text nor the traceback of an exception is recorded: they may tell what tasks and models said.
        with self._tracer.start_as_current_span(
            name, parent, _KINDS[kind], attributes, record_exception=False, set_status_on_exception=False
        ) as found:
            span = _Span(found)
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)
            token = set_context(get_context()._replace(traceparent=carrier[TRACE_HEADER]))
            try:
                yield span
            except BaseException as error:
                span.fail(error.slug if isinstance(error, RollmillError) else type(error).__name__)
                raise
            finally:
                reset_context(token)


class _Span:
    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def note(self, name: str, value: Attribute) -> None:
        self._span.set_attribute(name, value)

    def fail(self, kind: str) -> None:
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR))


def rollout_ids(attempt: AttemptId) -> tuple[int, int]:
    """Return the trace id of a rollout and the span id of its first attempt, neither of them 0."""
    digest = hashlib.sha256(f"{attempt.run_id}/{attempt.task}:{attempt.rollout}".encode()).digest()
    return int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1


def exporting_provider(exporter: str, service: str) -> TracerProvider:
    """Make what sends spans away, in batches and in the background.

    Args:
        exporter: `otlp` (over HTTP) or `console` (to stderr).
        service: becomes `service.name`.
    """
    resource = Resource.create({"service.name": service, "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    return provider


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        import sys

        return ConsoleSpanExporter(out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
