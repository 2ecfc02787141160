"""Serves a `Resources` object over HTTP."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from http.cookies import CookieError, SimpleCookie

import structlog

from rollmill.client.services import CLOSE_WITH_VERIFY_HEADER, ModelClient
from rollmill.context import MCP_TOKEN_HEADER, SESSION_HEADER
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.errors import InputError, RollmillError, SessionNotFoundError, ToolError, ToolFailedError
from rollmill.observability.meters import Gauge
from rollmill.server.aggregation import aggregate_route
from rollmill.server.app import ServiceApp, build_app
from rollmill.server.background import background
from rollmill.server.calls import Answer, Call, HotRoute, RawHeaders, json_answer
from rollmill.server.environment import Environment
from rollmill.server.environment_host import environment_routes
from rollmill.server.identity import class_identity
from rollmill.server.mcp_endpoint import McpEndpoint
from rollmill.server.phases import upstream
from rollmill.server.resources import Resources
from rollmill.server.runtime import Runtime
from rollmill.server.sessions import Session, SessionSigner, SessionStore
from rollmill.server.tools import Tool, declared_tools

log = structlog.get_logger(__name__)

SESSION_COOKIE = "rollmill_session"
_SESSION_HEADER = SESSION_HEADER.encode()
_TOKEN_HEADER = MCP_TOKEN_HEADER.encode()
_CLOSE_HEADER = CLOSE_WITH_VERIFY_HEADER.encode()
_TEXT: RawHeaders = ((b"content-type", b"text/plain; charset=utf-8"),)


def resources_app(resources: Resources, *, routes: Sequence[HotRoute] = ()) -> ServiceApp:
    """Build the application of a resources server.

    Args:
        resources: the environment.
        routes: further endpoints of its own.

    Raises:
        TypeError: a declared tool is not usable; says which and why.
    """
    return _Host(resources).app(routes)


class _Host:
    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._tools = declared_tools(resources)
        settings = resources.settings
        secret = settings.session_secret.get_secret_value() if settings.session_secret else ""
        self._signer = SessionSigner(secret)
        self._sessions = SessionStore(idle_seconds=settings.session_idle_seconds)
        self._mcp = self._mcp_endpoint() if settings.serve_mcp else None

    def app(self, routes: Sequence[HotRoute]) -> ServiceApp:
        resources = self._resources
        title = type(resources).__name__
        runtime = Runtime(resources.settings, "resources", self._capabilities())
        runtime.meters.append(Gauge("rollmill_sessions_open", "Sessions open.", read=lambda: {(): len(self._sessions)}))
        return build_app(
            resources.settings,
            kind="resources",
            title=title,
            hot=[*self._routes(), *routes],
            lifespan=self._lifespan,
            runtime=runtime,
        )

    def _mcp_endpoint(self) -> McpEndpoint:
        settings = self._resources.settings
        return McpEndpoint(
            settings.name or type(self._resources).__name__,
            self._tools,
            call=self._call_tool,
            find=self._session_of_token,
            using=self._sessions.using,
            max_body_bytes=settings.max_body_bytes,
        )

    def _capabilities(self) -> JsonObject:
        return {
            "tools": [tool.definition for tool in self._tools.values()],
            "reverify_mode": self._resources.reverify_mode,
            "verifier": class_identity(type(self._resources)),
            "score_fields": list(self._resources.score_fields),
            "answer_field": self._resources.answer_field,
            "custom_metrics": any(_overrides(self._resources, hook) for hook in ("compute_metrics", "get_key_metrics")),
        }

    def _routes(self) -> list[HotRoute]:
        routes = [
            HotRoute("POST", "/seed_session", self._seed, "Open a session for a task", watched=True),
            HotRoute("POST", "/verify", self._verify, "Grade a finished rollout", keyed=True, watched=True),
            HotRoute("POST", "/close_session", self._close, "End a session; closing twice is no error"),
            HotRoute("GET", "/reverify_mode", self._mode, "Say whether stored rollouts can be graded again"),
            aggregate_route(
                self._resources.compute_metrics if _overrides(self._resources, "compute_metrics") else None,
                self._resources.get_key_metrics if _overrides(self._resources, "get_key_metrics") else None,
            ),
        ]
        if isinstance(self._resources, Environment):
            routes += environment_routes(
                self._resources, opened=self._session_or_new, found=self._session, using=self._sessions.using
            )
        if self._mcp:
            routes += self._mcp.routes()
        return routes + [self._tool_route(tool) for tool in self._tools.values()]

    @asynccontextmanager
    async def _lifespan(self, runtime: Runtime) -> AsyncIterator[None]:
        self._resources.models = _RemoteModels(ModelClient(runtime.client))
        await self._resources.startup()
        try:
            offered = self._mcp.running() if self._mcp else nullcontext()
            async with background(self._reap(), name="session-reaper"), offered:
                yield
            for session in self._sessions.take_all():
                await self._end(session)
        finally:
            await self._resources.shutdown()

    async def _seed(self, call: Call) -> Answer:
        return json_answer({}, headers=(await self._open(call.json_object()))[1])

    async def _open(self, row: Row) -> tuple[Session, RawHeaders]:
        session_id, signed = self._signer.issue()
        session = self._sessions.open(session_id, row)
        try:
            await self._resources.seed_session(session, row)
        except BaseException:
            if self._sessions.pop(session_id) is not None:
                await self._end(session)  # what was opened before it failed is not leaked
            raise
        token = ((_TOKEN_HEADER, self._signer.token(session_id).encode()),) if self._mcp else ()
        return session, (*_session_headers(signed), *token)

    def _tool_route(self, tool: Tool) -> HotRoute:
        async def run(call: Call) -> Answer:
            session, headers = self._session_for_tool(call)
            with self._sessions.using(session):
                text = await self._call_tool(tool, session, call.json_object())
            return Answer(text.encode(), headers=(*_TEXT, *headers))

        summary = tool.description.partition("\n")[0] or f"The tool {tool.name}"
        schema = tool.definition["parameters"]
        text: JsonObject = {"type": "string"}
        return HotRoute(
            "POST",
            f"/{tool.name}",
            run,
            summary,
            keyed=True,
            watched=True,
            request_schema=schema,
            response_schema=text,
        )

    async def _call_tool(self, tool: Tool, session: Session, arguments: JsonObject) -> str:
        try:
            return await tool.call(session, arguments)
        except (ToolError, InputError):
            raise
        except RollmillError as error:
            raise ToolFailedError(f"tool {tool.name} failed: {error.detail}") from error
        except Exception as error:
            log.exception("tool_failed", tool=tool.name, session=session.id)
            raise ToolFailedError(f"tool {tool.name} failed") from error

    async def _verify(self, call: Call) -> Answer:
        row = call.json_object()
        session_id = self._session_id(call)
        session = self._sessions.get(session_id) if session_id else await self._ephemeral(row)
        close = not session_id or _CLOSE_HEADER in call.headers
        try:
            verdict = await self._grade(row, session)
        except BaseException:
            if not session_id:
                await self._end(session)
            raise
        if not session_id or (close and self._sessions.pop(session.id) is not None):
            await self._end(session)
        headers = ((_CLOSE_HEADER, b"1"),) if close and session_id else ()
        return json_answer(verdict.merged_into(row), headers=headers)

    async def _grade(self, row: Row, session: Session) -> Verdict:
        with self._sessions.using(session):
            verdict = await self._resources.verify(Rollout(row), session)
        if not isinstance(verdict, Verdict):
            verdict = Verdict(float(verdict))
        if not math.isfinite(verdict.reward):
            raise RollmillError(f"the verifier gave the reward {verdict.reward}, which is not finite")
        return verdict

    async def _ephemeral(self, row: Row) -> Session:
        """A session for a row that was never seeded here, if the verifier can do without the real one."""
        if self._resources.reverify_mode == "unsupported":
            raise SessionNotFoundError("this verifier grades what happened in the session: send the session's header")
        session = Session(self._signer.issue()[0], row)
        await self._resources.seed_session(session, row)
        return session

    async def _close(self, call: Call) -> Answer:
        session_id = self._session_id(call)
        session = self._sessions.pop(session_id) if session_id else None
        if session is not None:
            await self._end(session)
        return json_answer({})

    async def _mode(self, _: Call) -> Answer:
        return json_answer(self._resources.reverify_mode)

    def _session(self, call: Call) -> Session:
        session_id = self._session_id(call)
        if session_id is None:
            raise SessionNotFoundError("send the session's header, as /seed_session or /reset gave it")
        return self._sessions.get(session_id)

    def _session_of_token(self, token: str) -> Session | None:
        session_id = self._signer.check_token(token)
        return self._sessions.get(session_id) if session_id else None

    async def _session_or_new(self, call: Call) -> tuple[Session, RawHeaders]:
        return (self._session(call), ()) if self._session_id(call) else await self._open(call.json_object())

    def _session_for_tool(self, call: Call) -> tuple[Session, RawHeaders]:
        """The caller's session; one that comes without any, as plain HTTP clients do, gets an unseeded one."""
        session_id = self._session_id(call)
        if session_id:
            return self._sessions.get(session_id), ()
        fresh, signed = self._signer.issue()
        return self._sessions.open(fresh, {}), _session_headers(signed)

    def _session_id(self, call: Call) -> str | None:
        signed = call.headers.get(_SESSION_HEADER) or _cookie(call.headers.get(b"cookie", b""))
        if not signed:
            return None
        session_id = self._signer.check(signed.decode("latin-1"))
        if session_id is None:
            raise SessionNotFoundError("the session id was not issued by this replica")
        return session_id

    async def _end(self, session: Session) -> None:
        try:
            await self._resources.close_session(session)
        except Exception:
            log.exception("close_session_failed", session=session.id)

    async def _reap(self) -> None:
        pause = min(60.0, self._resources.settings.session_idle_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            for session in self._sessions.take_idle():
                log.info("session_reaped", session=session.id)
                await self._end(session)


class _RemoteModels:
    """`Models` that are services."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    async def respond(self, name: str, request: JsonObject) -> JsonObject:
        with upstream("model"):
            return await self._client.respond(name, request)


def _overrides(resources: Resources, hook: str) -> bool:
    return getattr(type(resources), hook) is not getattr(Resources, hook)


def _session_headers(signed: str) -> RawHeaders:
    cookie = f"{SESSION_COOKIE}={signed}; Path=/; HttpOnly; SameSite=Strict"
    return ((_SESSION_HEADER, signed.encode()), (b"set-cookie", cookie.encode()))


def _cookie(raw: bytes) -> bytes:
    if not raw:
        return b""
    try:
        morsel = SimpleCookie(raw.decode("latin-1")).get(SESSION_COOKIE)
    except CookieError:
        return b""
    return morsel.value.encode() if morsel else b""
