"""Traces of real processes, as a backend gets them that speaks OTLP over HTTP."""

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

if TYPE_CHECKING:
    from tests.integration.conftest import Workplace

EXAMPLES = Path(__file__).parents[2] / "examples"


class Backend(ThreadingHTTPServer):
    """Keeps the spans that are sent to it, with the service that each is from."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[tuple[str, Span]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        assert isinstance(self.server, Backend)
        for group in sent.resource_spans:
            (name,) = [a.value.string_value for a in group.resource.attributes if a.key == "service.name"]
            self.server.spans += [(name, span) for scope in group.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def backend() -> Iterator[Backend]:
    server = Backend()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_rollout_through_processes_is_one_trace_in_the_backend(workplace: "Workplace", backend: Backend) -> None:
    shutil.copytree(EXAMPLES / "data", workplace.path / "data")
    shutil.copy(EXAMPLES / "weather.yaml", workplace.path / "t.yaml")
    workplace.environ = {k: v for k, v in workplace.environ.items() if not k.startswith("OTEL_")}
    workplace.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{backend.server_port}"
    processes = workplace.up()
    token = (workplace.path / ".rollmill/token").read_text().split()[0]
    (task, *_) = (EXAMPLES / "data/weather.jsonl").read_text().splitlines()
    form = {"request": '{"id": "traced"}'}
    answer = httpx.post(
        f"{processes['collector'].url}/collect",
        files={"file": task.encode()},
        data=form,
        headers={"authorization": f"Bearer {token}"},
        timeout=60,
    )
    assert workplace.run("down", "--grace", "20").returncode == 0  # what is left is sent at the end
    spans = [(name, span) for name, span in backend.spans if "aggregate" not in span.name]
    ids = {span.span_id for _, span in spans}

    assert '"completed":1' in answer.text, answer.text
    assert {name for name, _ in spans} == {"collector", "weather_agent", "policy", "weather"}
    assert len({span.trace_id for _, span in spans}) == 1
    assert [span.name for _, span in spans if not span.parent_span_id] == ["rollout"]
    assert [span.name for _, span in spans if span.parent_span_id and span.parent_span_id not in ids] == []
