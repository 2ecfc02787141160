"""The tools that a resources server declares, as a Model Context Protocol endpoint for agents of others.

The official `mcp` package speaks the protocol; it sees one POST at a time, each with its whole answer. Which session a
call belongs to is told by its bearer token, which stands for one session and opens nothing else.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeAlias

from starlette.types import Message, Scope

from rollmill._version import __version__
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import ConfigError, InputError, ToolError, ToolFailedError, UnauthorizedError
from rollmill.server.background import background
from rollmill.server.calls import Answer, Call, HotRoute, RawHeaders
from rollmill.server.sessions import Session
from rollmill.server.tools import Tool

if TYPE_CHECKING:
    from mcp.server import Server, ServerRequestContext
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

CallTool: TypeAlias = Callable[[Tool, Session, JsonObject], Awaitable[str]]
"""Runs a tool; what the model did wrong, or the tool, is a `ToolError`, `InputError` or `ToolFailedError`."""
FindSession: TypeAlias = Callable[[str], Session | None]
"""Returns the open session of a token, None for one that was never given out."""
UseSession: TypeAlias = Callable[[Session], AbstractContextManager[None]]

PATH = "/mcp"
_SESSION = "rollmill.session"
_START_SECONDS = 10.0
_NOT_ALLOWED: RawHeaders = ((b"allow", b"POST"),)


class McpEndpoint:
    """Serves declared tools at `/mcp`, and nothing else of the server.

    Args:
        name: what the server calls itself.
        tools: those that are declared, by name.
        call: runs one.
        find: the session of a token.
        using: keeps a session from being idle meanwhile.
        max_body_bytes: larger requests are refused.
    """

    def __init__(
        self,
        name: str,
        tools: Mapping[str, Tool],
        *,
        call: CallTool,
        find: FindSession,
        using: UseSession,
        max_body_bytes: int,
    ) -> None:
        self._name = name
        self._tools = tools
        self._call = call
        self._find = find
        self._using = using
        self._max_body_bytes = max_body_bytes
        self._manager: StreamableHTTPSessionManager | None = None

    def routes(self) -> list[HotRoute]:
        """Return its routes. They check their callers themselves: those have a session's token, not the service's."""
        post = HotRoute(
            "POST", PATH, self._post, "Call tools by the Model Context Protocol", own_check=True, watched=True
        )
        others = [HotRoute(method, PATH, _refuse, "Not offered", own_check=True) for method in ("GET", "DELETE")]
        return [post, *others]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the library and serve until the block ends.

        Raises:
            ConfigError: the library is not installed.
        """
        if find_spec("mcp") is None:
            raise ConfigError("the setting serve_mcp needs the package mcp: pip install 'rollmill[mcp]'")
        ready = asyncio.Event()
        async with background(self._serve(ready), name="mcp"):
            await asyncio.wait_for(ready.wait(), _START_SECONDS)
            yield

    async def _serve(self, ready: asyncio.Event) -> None:
        """Keep the library's manager open, in one task from start to end, as it needs."""
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        manager = StreamableHTTPSessionManager(
            self._server(), json_response=True, stateless=True, max_request_body_size=self._max_body_bytes
        )
        async with manager.run():
            self._manager = manager
            ready.set()
            await asyncio.Event().wait()

    def _server(self) -> "Server":
        from mcp.server import Server

        return Server(self._name, version=__version__, on_list_tools=self._list, on_call_tool=self._run)

    async def _list(
        self, context: "ServerRequestContext", params: "PaginatedRequestParams | None"
    ) -> "ListToolsResult":
        from mcp_types import ListToolsResult
        from mcp_types import Tool as McpTool

        definitions = [tool.definition for tool in self._tools.values()]
        return ListToolsResult(
            tools=[
                McpTool(name=each["name"], description=each["description"], input_schema=each["parameters"])
                for each in definitions
            ]
        )

    async def _run(self, context: "ServerRequestContext", params: "CallToolRequestParams") -> "CallToolResult":
        """Run a tool in the session of the request; what goes wrong is text for the model, as with other agents."""
        from mcp_types import CallToolResult, TextContent

        def result(text: str, *, failed: bool) -> CallToolResult:
            return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

        tool = self._tools.get(params.name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return result(f"unknown tool {params.name!r}; the tools are: {known}", failed=True)
        request: JsonValue = context.request  # the starlette request that the library made of the exchange
        session: Session = request.scope[_SESSION]
        try:
            return result(await self._call(tool, session, params.arguments or {}), failed=False)
        except (ToolError, InputError, ToolFailedError) as error:
            return result(error.detail, failed=True)

    async def _post(self, call: Call) -> Answer:
        scheme, _, token = call.headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        session = self._find(token.strip()) if scheme.lower() == "bearer" else None
        if session is None or self._manager is None:
            raise UnauthorizedError("send the token of a session, which /seed_session gives, as bearer token")
        exchange = _Exchange(call, session)
        with self._using(session):
            await self._manager.handle_request(exchange.scope, exchange.receive, exchange.send)
        return exchange.answer()


class _Exchange:
    """One call as the library takes it: an ASGI request whose body is there, and whose answer is collected."""

    def __init__(self, call: Call, session: Session) -> None:
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": call.path,
            "query_string": b"",
            "headers": list(call.headers.items()),
            _SESSION: session,
        }
        self._body: bytes | None = call.body
        self._status = 500
        self._headers: RawHeaders = ()
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        """Give the body; after that the client is there for as long as anybody asks."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body}

    async def send(self, message: Message) -> None:
        """Collect a part of the answer."""
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], message.get("headers", ())
        else:
            self._parts.append(message.get("body", b""))

    def answer(self) -> Answer:
        """Return the whole answer; its length is told anew."""
        kept = [(name, value) for name, value in self._headers if name.lower() != b"content-length"]
        return Answer(b"".join(self._parts), self._status, kept)


async def _refuse(_: Call) -> Answer:
    return Answer(status=405, headers=_NOT_ALLOWED)
