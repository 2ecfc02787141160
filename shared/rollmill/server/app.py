from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeAlias

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rollmill._version import __version__
from rollmill.client.http import HttpTransport
from rollmill.client.links import Connector, connect_over_network
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.services import Kind
from rollmill.observability.logging import ensure_logging
from rollmill.observability.meters import Gauge
from rollmill.server.background import background
from rollmill.server.call_meters import CallMeters
from rollmill.server.calls import HotRoute
from rollmill.server.docs import docs_router
from rollmill.server.edge import Edge
from rollmill.server.health import health_router
from rollmill.server.problems import PROBLEM_MEDIA_TYPE, add_problem_handlers
from rollmill.server.registration import Registrar
from rollmill.server.runtime import Runtime

Lifespan: TypeAlias = Callable[[Runtime], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _nothing(_: Runtime) -> AsyncIterator[None]:
    yield


class ServiceApp(FastAPI):
    """A FastAPI application with Rollmill's edge around it.

    `connector` says how the service reaches others; whoever embeds the application may replace it before the
    lifespan starts. `around` puts a layer outside the edge.
    """

    def __init__(self, runtime: Runtime, *, title: str, hot: Sequence[HotRoute], lifespan: Lifespan) -> None:
        self.runtime = runtime
        self.connector: Connector = connect_over_network
        self.around: Callable[[ASGIApp], ASGIApp] = lambda edge: edge
        self._hot = hot
        self._own_lifespan = lifespan
        self.edge: Edge | None = None
        self.meters = CallMeters(runtime, self._in_flight)
        super().__init__(title=title, version=__version__, lifespan=_run, docs_url=None, redoc_url=None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Go straight to the edge; what FastAPI does before its own layers is of no use to the hot routes."""
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"] = self  # FastAPI's routes and the lifespan look here
        await self.middleware_stack(scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        """Put the edge outside everything that FastAPI itself wraps around the routes."""
        self.edge = Edge(super().build_middleware_stack(), self.runtime, self._hot, self.meters)
        return self.around(self.edge)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open what the service needs, say that it is ready, and close everything at the end."""
        runtime = self.runtime
        ensure_logging()
        _ = runtime.tokens.valid  # a token file that cannot be used is told now, not with the first call
        async with AsyncExitStack() as stack:
            runtime.connected = await stack.enter_async_context(self.connector(runtime.settings))
            runtime.connected.tracer = runtime.tracer
            await stack.enter_async_context(background(self.meters.watch_loop(), name="event-loop-lag"))
            await stack.enter_async_context(self._own_lifespan(runtime))
            if runtime.settings.head_url and runtime.settings.advertise_url:
                await stack.enter_async_context(self._registered())
            runtime.not_ready = ""
            try:
                yield
            finally:
                runtime.not_ready = runtime.not_ready or "stopping"

    def _in_flight(self) -> int:
        return self.edge.in_flight if self.edge else 0

    @asynccontextmanager
    async def _registered(self) -> AsyncIterator[None]:
        transport = HttpTransport(ca_file=self.runtime.settings.tls_ca_file)
        registrar = Registrar(self.runtime, transport, self._in_flight)
        self.runtime.on_drain.append(registrar.announce)
        registered = Gauge(
            "rollmill_registered", "1 while the head knows the service.", read=lambda: {(): float(registrar.registered)}
        )
        self.runtime.meters.append(registered)
        try:
            async with background(registrar.run(), name="registration"):
                yield
            await registrar.leave()
        finally:
            await transport.aclose()


@asynccontextmanager
async def _run(app: FastAPI) -> AsyncIterator[None]:
    if not isinstance(app, ServiceApp):
        raise TypeError("this lifespan belongs to ServiceApp")
    async with app.running():
        yield


def build_app(
    settings: ServiceSettings,
    *,
    kind: Kind,
    title: str,
    routers: Sequence[APIRouter] = (),
    hot: Sequence[HotRoute] = (),
    lifespan: Lifespan = _nothing,
    runtime: Runtime | None = None,
) -> ServiceApp:
    """Build a service's application. Pure: no socket, file or environment is touched before its lifespan.

    Args:
        settings: the service's settings.
        kind: what it is to the others.
        title: name in the OpenAPI page.
        routers: ordinary FastAPI routes, for control planes and people.
        hot: routes answered at the edge, for load.
        lifespan: opens and closes what the service needs; the client to other services is there already.
        runtime: given when the routes share it; else made from settings and kind.
    """
    app = ServiceApp(runtime or Runtime(settings, kind), title=title, hot=hot, lifespan=lifespan)
    add_problem_handlers(app, hidden=app.runtime.hidden)
    app.include_router(health_router(app.runtime, app.meters.text))
    app.include_router(docs_router())
    for router in routers:
        app.include_router(router)
    for route in hot:
        _declare(app, route)
    return app


def _declare(app: FastAPI, route: HotRoute) -> None:
    """Add a hot route to the OpenAPI page; the edge answers it before FastAPI sees a call."""

    async def unreachable(request: Request) -> Response:
        raise RuntimeError(f"{route.path} is answered at the edge")

    body: JsonObject = {"content": {"application/json": {"schema": route.request_schema or {"type": "object"}}}}
    answer = {"content": {"application/json": {"schema": route.response_schema or {"type": "object"}}}}
    problem = {"description": "Problem", "content": {PROBLEM_MEDIA_TYPE: {"schema": {"type": "object"}}}}
    extra: JsonObject = {
        "responses": {"200": {"description": "Success", **answer}, "default": problem},
        **({"requestBody": body} if route.method == "POST" else {}),
    }
    app.add_api_route(
        route.path,
        unreachable,
        methods=[route.method],
        summary=route.summary,
        operation_id=f"{route.method.lower()}_{route.path.strip('/').replace('/', '_') or 'root'}",
        openapi_extra=extra,
        response_class=Response,
    )
