"""Serves an `Agent` object over HTTP: one episode per call, with its session opened and always closed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import structlog

from rollmill.client.services import ModelClient, ResourcesClient, ResourcesSession
from rollmill.context import get_context, set_context
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject
from rollmill.errors import RollmillError
from rollmill.ids import new_id
from rollmill.openai import response_events
from rollmill.server.agent import Agent
from rollmill.server.app import ServiceApp, build_app
from rollmill.server.calls import Answer, Call, HotRoute, event_stream, json_answer
from rollmill.server.episode import RemoteEpisode
from rollmill.server.phases import phase, upstream
from rollmill.server.runtime import Runtime

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_SECONDS = 5.0


def agent_app(agent: Agent) -> ServiceApp:
    """Build the application of an agent."""
    return _Host(agent).app()


class _Host:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        settings = agent.settings
        capabilities = {"model": settings.model, "resources": settings.resources}
        self._runtime = Runtime(settings, "agent", capabilities)
        self._closing: set[asyncio.Task[None]] = set()

    def app(self) -> ServiceApp:
        routes = [
            HotRoute("POST", "/run", self._run, "Run and grade one rollout", keyed=True, watched=True),
            HotRoute("POST", "/v1/responses", self._respond, "Answer a Responses request", watched=True),
            HotRoute("POST", "/aggregate_metrics", self._aggregate, "Statistics of verified rollouts"),
        ]
        return build_app(
            self._agent.settings,
            kind="agent",
            title=type(self._agent).__name__,
            hot=routes,
            lifespan=self._lifespan,
            runtime=self._runtime,
        )

    @asynccontextmanager
    async def _lifespan(self, _: Runtime) -> AsyncIterator[None]:
        await self._agent.startup()
        try:
            yield
            if self._closing:
                await asyncio.wait(self._closing, timeout=CLOSE_TIMEOUT_SECONDS)
        finally:
            await self._agent.shutdown()

    async def _run(self, call: Call) -> Answer:
        row = call.json_object()
        async with self._episode(row) as episode:
            result = await self._agent.run(row, episode)
        return json_answer(result, keep=not result.get(rows.NO_PERSIST))  # a killed rollout is to be run again

    async def _respond(self, call: Call) -> Answer:
        request = call.json_object()
        streamed = bool(request.pop("stream", False))
        async with self._episode({rows.PARAMS: request}) as episode:
            response = await self._agent.respond(request, episode)
        return event_stream(_events(response), named=True) if streamed else json_answer(response)

    @asynccontextmanager
    async def _episode(self, row: rows.Row) -> AsyncIterator[RemoteEpisode]:
        """Seed a session, and close it whatever happens; a cancelled rollout does not wait for that.

        The calls of each episode have keys of their own: under the key of the rollout, its repeat on another agent
        would be given the tool outputs and the verdict of the first one's session.
        """
        client = self._runtime.client
        resources = ResourcesClient(client)
        settings = self._agent.settings
        with phase("seed", settings.timeouts.seed_seconds):
            session = await resources.seed(settings.resources, row)
        try:
            model = ModelClient(client)
            yield RemoteEpisode(
                model,
                resources,
                session,
                model_name=settings.model,
                key=new_id(),
                row=row,
                timeouts=settings.timeouts,
            )
        finally:
            if not session.closed:
                task = asyncio.create_task(self._close(resources, session))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def _close(self, resources: ResourcesClient, session: ResourcesSession) -> None:
        set_context(get_context()._replace(deadline=None).sooner(CLOSE_TIMEOUT_SECONDS))
        try:
            await resources.close(session)
        except RollmillError as error:
            log.warning("close_session_failed", service=session.replica.info.name, error=str(error))

    async def _aggregate(self, call: Call) -> Answer:
        resources = ResourcesClient(self._runtime.client)
        with upstream("resources"):
            return Answer(await resources.aggregate_metrics(self._agent.settings.resources, call.body))


async def _events(response: JsonObject) -> AsyncGenerator[JsonObject, None]:
    for event in response_events(response):
        yield event
