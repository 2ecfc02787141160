import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rollmill.context import CallContext, get_context, reset_context, set_context
from rollmill.contracts.attempts import AttemptId
from rollmill.errors import ConfigError
from rollmill.observability.tracing import NO_TRACER, opened_tracer

ATTEMPT = AttemptId("r", 0, 1, 0)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"},
        {"OTEL_SERVICE_NAME": "a name asks for nothing"},
    ],
)
def test_nothing_is_traced_unless_a_variable_asks_for_it(environ: dict[str, str]) -> None:
    with opened_tracer(environ, "weather") as tracer:
        assert tracer is NO_TRACER


def test_an_exporter_that_there_is_not_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER='zipkin': must be otlp, console or none"):
        opened_tracer({"OTEL_TRACES_EXPORTER": "zipkin"}, "weather").__enter__()


def test_without_a_tracer_a_callers_trace_goes_on_as_it_is() -> None:
    token = set_context(CallContext(traceparent="00-x"))
    try:
        with NO_TRACER.attempt(ATTEMPT, "a") as attempt, NO_TRACER.span("model", "client") as span:
            attempt.fail("upstream-failed")
            span.note("rollmill.reward", 1.0)
            assert get_context().traceparent == "00-x"
    finally:
        reset_context(token)


class Backend(BaseHTTPRequestHandler):
    """Takes spans as an OpenTelemetry collector does."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.taken.append((self.path, body))  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def backend() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    server.taken = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


TRACES = """
import os
from rollmill.contracts.attempts import AttemptId
from rollmill.observability.tracing import opened_tracer
with opened_tracer(os.environ, "weather") as tracer, tracer.attempt(AttemptId("r", 0, 1, 0), "an-agent"):
    pass
"""


def traced_process(**variables: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | variables
    return subprocess.run([sys.executable, "-c", TRACES], env=environ, capture_output=True, text=True, timeout=60)


def test_spans_go_to_the_endpoint_that_the_environment_names(backend: ThreadingHTTPServer) -> None:
    url = f"http://127.0.0.1:{backend.server_port}"
    done = traced_process(OTEL_EXPORTER_OTLP_ENDPOINT=url, OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
    ((path, body),) = backend.taken  # type: ignore[attr-defined]

    assert (done.returncode, done.stderr) == (0, "")
    assert path == "/v1/traces"
    assert [word for word in (b"rollout", b"an-agent", b"weather", b"deployment.environment") if word not in body] == []


def test_the_console_exporter_writes_a_line_for_each_span() -> None:
    done = traced_process(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="my-name")

    assert (done.returncode, done.stdout) == (0, "")
    assert '"name": "rollout"' in done.stderr
    assert '"service.name": "my-name"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_backend_that_is_away_does_not_keep_a_process_from_ending() -> None:
    began = time.monotonic()
    done = traced_process(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="2")

    assert done.returncode == 0
    assert time.monotonic() - began < 40


def test_without_the_extra_the_process_says_so_and_goes_on() -> None:
    told = "from rollmill.observability.logging import ensure_logging; ensure_logging()"
    blocked = f"import sys; sys.modules['opentelemetry'] = None; {told}\n" + TRACES
    environ = os.environ | {"OTEL_TRACES_EXPORTER": "console"}
    done = subprocess.run([sys.executable, "-c", blocked], env=environ, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stdout) == (0, "")
    assert "pip install 'rollmill[otel]'" in done.stderr
