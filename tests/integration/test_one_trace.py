"""One rollout over real sockets: one connected trace, and log lines that say which rollout they are about."""

import io
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from rollmill.artifacts.reader import read_jsonl
from rollmill.client.directory import StaticDirectory
from rollmill.client.http import HttpTransport
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.attempts import AttemptId
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.contracts.services import Instance
from rollmill.errors import UpstreamError
from rollmill.observability.logging import configure_logging
from rollmill.observability.otel import OtelTracer, rollout_ids
from rollmill.observability.tracing import NO_TRACER, Tracer
from rollmill.openai.items import function_call
from rollmill.server import Resources, ServiceApp, Session, model_app, resources_app, tool
from rollmill.testing import FakeModel
from rollmill_services.agents.tool_loop.agent import ToolLoopSettings
from rollmill_services.agents.tool_loop.app import create_app as create_agent

Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[str]]
HOPS = {
    "rollout": None,
    "POST /run": "rollout",
    "seed": "POST /run",
    "POST /seed_session": "seed",
    "model": "POST /run",
    "POST /v1/responses": "model",
    "tool": "POST /run",
    "POST /buy": "tool",
    "verify": "POST /run",
    "POST /verify": "verify",
}
"""Every span of a rollout, and whose child it is."""
log = structlog.get_logger("shop")


class Shop(Resources):
    """Says in its log what it does."""

    @tool
    async def buy(self) -> str:
        """Buy."""
        log.info("bought")
        return "bought"

    async def verify(self, rollout: Rollout, session: Session) -> float:
        log.info("graded")
        return 1.0


class Policy:
    """Buys, then is done. With the word `unlucky` the first attempt fails after the tool was called."""

    def __init__(self) -> None:
        self.failed: set[str] = set()

    def __call__(self, request: JsonObject) -> str | JsonObject | UpstreamError:
        log.info("asked")
        task = request["input"][0]["content"]
        if request["input"][-1]["type"] != "function_call_output":
            return function_call("buy", "{}", "c")
        if "unlucky" in task and task not in self.failed:
            self.failed.add(task)
            return UpstreamError("secret-engine-text", retryable=True)
        return "done"


@dataclass
class Deployment:
    """Services at work."""

    client: ServiceClient
    path: Path

    async def collect(self, tasks: list[str], *, run_id: str = "r1", **options: object) -> RunStatus:
        file = self.path / "tasks.jsonl"
        rows = [{"responses_create_params": {"input": task}, "agent_ref": {"name": "shopper"}} for task in tasks]
        file.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
        plan = CollectionPlan(
            file, self.path / "out.jsonl", RunOptions.model_validate(options), run_id=run_id, resume=True
        )
        return await Collector(plan, self.client).run()


Start: TypeAlias = Callable[[Tracer], AbstractAsyncContextManager[Deployment]]


@pytest.fixture
def start(serve: Serve, tmp_path: Path) -> Start:
    """Serve agent, model and environment, each behind a socket of its own, all traced with one tracer."""

    @asynccontextmanager
    async def started(tracer: Tracer) -> AsyncIterator[Deployment]:
        async with AsyncExitStack() as stack:
            transport = HttpTransport()
            stack.push_async_callback(transport.aclose)
            instances: list[Instance] = []

            @asynccontextmanager
            async def connect(_: ServiceSettings) -> AsyncIterator[ServiceClient]:
                yield ServiceClient(transport, StaticDirectory(instances))

            for app in apps():
                app.connector, app.runtime.tracer = connect, tracer
                url = await stack.enter_async_context(serve(app))
                name, kind = app.runtime.settings.name, app.runtime.kind
                told = app.runtime.capabilities
                instances.append(Instance(name=name, instance=name, kind=kind, url=url, capabilities=told))
            client = ServiceClient(transport, StaticDirectory(instances))
            client.tracer = tracer
            yield Deployment(client, tmp_path)

    return started


def apps() -> list[ServiceApp]:
    return [
        model_app(FakeModel(Policy(), ServiceSettings(name="policy"))),
        resources_app(Shop(ServiceSettings(name="shop"))),
        create_agent(ToolLoopSettings(name="shopper", model="policy", resources="shop")),
    ]


def traced(share: float = 1.0) -> tuple[Tracer, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(TraceIdRatioBased(share), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider), exporter


def traces_of(exporter: InMemorySpanExporter) -> dict[int, list[ReadableSpan]]:
    found = defaultdict(list)
    for span in exporter.get_finished_spans():
        assert span.context is not None
        found[span.context.trace_id].append(span)
    return found


def parents(spans: list[ReadableSpan]) -> list[tuple[str, str | None]]:
    """Return each span's name and its parent's; a parent that is not among them is called `MISSING`."""
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    return [(s.name, names.get(s.parent.span_id, "MISSING") if s.parent else None) for s in spans]


async def test_a_rollout_is_one_connected_trace_over_all_hops(start: Start) -> None:
    tracer, exporter = traced()
    async with start(tracer) as services:
        status = await services.collect(["one", "two"], num_repeats=2)
    traces = traces_of(exporter)

    assert (status.completed, len(traces)) == (4, 4)
    for spans in traces.values():
        assert dict(parents(spans)) == HOPS
        assert len(spans) == len(HOPS) + 2  # the model was asked twice
        (root,) = [span for span in spans if span.parent is None]
        assert root.attributes is not None
        assert (root.attributes["rollmill.run"], root.attributes["rollmill.reward"]) == ("r1", 1.0)
    services_seen = {
        span.attributes["rollmill.service"]
        for spans in traces.values()
        for span in spans
        if span.attributes and "rollmill.service" in span.attributes
    }
    assert services_seen == {"policy", "shop", "shopper"}


async def test_another_attempt_joins_the_trace_of_the_first(start: Start) -> None:
    tracer, exporter = traced()
    async with start(tracer) as services:
        status = await services.collect(["unlucky"])
    (spans,) = traces_of(exporter).values()
    attempts = [span for span in spans if span.name == "rollout"]

    assert (status.completed, status.failed_attempts) == (1, 1)
    assert {parent for _, parent in parents(spans)} >= {None, "rollout"}
    assert "MISSING" not in {parent for _, parent in parents(spans)}
    assert [dict(span.attributes or {})["rollmill.attempt"] for span in attempts] == [0, 1]
    assert dict(attempts[0].attributes or {})["error.type"] == "upstream-failed"
    assert attempts[1].parent is not None
    assert attempts[0].context is not None
    assert attempts[1].parent.span_id == attempts[0].context.span_id


async def test_the_trace_of_a_line_in_the_files_can_be_computed(start: Start) -> None:
    tracer, exporter = traced()
    async with start(tracer) as services:
        await services.collect(["one"], num_repeats=3)
    lines = read_jsonl(services.path / "out.jsonl")
    computed = {rollout_ids(AttemptId("r1", 0, line["_ng_rollout_index"], 0))[0] for line in lines}

    assert computed == set(traces_of(exporter))


async def test_attempts_are_sampled_together(start: Start) -> None:
    tracer, exporter = traced(0.5)
    async with start(tracer) as services:
        await services.collect([f"unlucky {number}" for number in range(40)])
    traces = traces_of(exporter)

    assert 0 < len(traces) < 40
    for spans in traces.values():
        assert len([span for span in spans if span.name == "rollout"]) == 2
        assert "MISSING" not in {parent for _, parent in parents(spans)}


async def test_spans_tell_nothing_that_a_task_a_model_or_an_error_says(start: Start) -> None:
    tracer, exporter = traced()
    async with start(tracer) as services:
        await services.collect(["unlucky secret-task-text"])
    shown = "".join(span.to_json() for span in exporter.get_finished_spans())

    assert "error.type" in shown
    assert [word for word in ("secret-task-text", "secret-engine-text", "Traceback") if word in shown] == []


@pytest.fixture
def log_lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    configure_logging("INFO", json=True, stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


async def test_log_lines_of_every_service_say_which_rollout_they_are_about(
    start: Start, log_lines: io.StringIO
) -> None:
    async with start(NO_TRACER) as services:
        await services.collect(["one", "unlucky", "two"], run_id="nightly")
    lines = [json.loads(line) for line in log_lines.getvalue().splitlines()]
    said = defaultdict(list)
    for line in lines:
        if line["event"] in ("asked", "bought", "graded"):
            assert (line["run_id"], bool(line["request_id"])) == ("nightly", True)
            said[line["event"]].append((line["task"], line["rollout"], line["attempt"]))
    everybody = [(0, 0, 0), (1, 0, 0), (1, 0, 1), (2, 0, 0)]

    assert sorted(set(said["bought"])) == sorted(set(said["asked"])) == everybody
    assert sorted(said["graded"]) == [(0, 0, 0), (1, 0, 1), (2, 0, 0)]


async def test_a_callers_trace_goes_on_through_services_that_trace_nothing(
    start: Start, log_lines: io.StringIO
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with start(NO_TRACER) as services:
        replica = await services.client.directory.pick("shopper")
        headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "content-type": "application/json"}
        row = {"responses_create_params": {"input": "one"}}
        transport = services.client.transport
        reply = await transport.send("POST", f"{replica.url}/run", headers=headers, body=dumps(row))
    lines = [json.loads(line) for line in log_lines.getvalue().splitlines()]

    assert reply.ok
    assert [line["trace_id"] for line in lines if line["event"] == "graded"] == [trace]
