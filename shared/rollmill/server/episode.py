from rollmill.client.services import ModelClient, ResourcesClient, ResourcesSession, error_output
from rollmill.context import MCP_TOKEN_HEADER
from rollmill.contracts.failures import MAX_UNVERIFIED_BYTES, UNVERIFIED
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.errors import ConfigError, RollmillError, UpstreamTimeoutError, is_retryable
from rollmill.server.agent import PhaseTimeouts
from rollmill.server.in_process import EMBEDDED_DOMAIN
from rollmill.server.mcp_endpoint import PATH as MCP_PATH
from rollmill.server.phases import phase


class RemoteEpisode:
    """An `Episode` whose model and resources are services."""

    def __init__(
        self,
        model: ModelClient,
        resources: ResourcesClient,
        session: ResourcesSession,
        *,
        model_name: str,
        key: str,
        row: Row,
        timeouts: PhaseTimeouts,
    ) -> None:
        self._model = model
        self._resources = resources
        self._session = session
        self._model_name = model_name
        self._key = key
        self._row = row
        self._timeouts = timeouts
        self._calls = 0
        tools = session.replica.info.capabilities.get("tools")
        self._tools: list[JsonObject] = tools if isinstance(tools, list) else []
        self._declared = {tool["name"] for tool in self._tools}

    @property
    def tools(self) -> list[JsonObject]:
        """See `Episode.tools`."""
        return self._tools

    async def respond(self, request: JsonObject) -> JsonObject:
        """See `Episode.respond`."""
        with phase("model", self._timeouts.model_seconds):
            return await self._model.respond(self._model_name, request)

    async def call_tool(self, name: str, arguments: str) -> str:
        """See `Episode.call_tool`."""
        if name not in self._declared:
            known = ", ".join(sorted(self._declared)) or "none"
            return error_output(f"unknown tool {name!r}; the tools are: {known}")
        try:
            parsed = loads(arguments) if arguments.strip() else {}
        except ValueError as error:
            return error_output(f"the arguments of {name} are not valid JSON: {error}")
        if not isinstance(parsed, dict):
            return error_output(f"the arguments of {name} must be a JSON object")
        self._calls += 1
        key = f"{self._key}-{self._calls}"
        try:
            with phase("tool", self._timeouts.tool_seconds, tool=name):
                return await self._resources.call_tool(self._session, name, parsed, key=key)
        except UpstreamTimeoutError as error:
            if not is_retryable(error):
                raise  # the rollout's time is over, not the tool's
            return error_output(f"the tool {name} did not answer within {self._timeouts.tool_seconds:g} s")

    async def verify(self, row: Row) -> Row:
        """See `Episode.verify`."""
        try:
            with phase("verify", self._timeouts.verify_seconds):
                return await self._resources.verify(self._session, row, key=self._key)
        except RollmillError as error:
            error.extensions.update(self._unverified(row))
            raise

    def mcp_tool(self) -> JsonObject:
        """See `Episode.mcp_tool`."""
        replica = self._session.replica
        token = self._session.headers.get(MCP_TOKEN_HEADER)
        if not token:
            raise ConfigError(f"{replica.info.name} offers no tools by MCP: set `serve_mcp: true` in its settings")
        if replica.url.endswith(EMBEDDED_DOMAIN):
            raise ConfigError(f"nobody outside of this process can reach {replica.info.name}: use `rollmill up`")
        return {
            "type": "mcp",
            "server_label": replica.info.name,
            "server_url": replica.url + MCP_PATH,
            "authorization": token,
            "require_approval": "never",
        }

    async def ask(self, model: str, request: JsonObject) -> JsonObject:
        """See `Episode.ask`."""
        with phase("model", self._timeouts.model_seconds):
            return await self._model.respond(model, request)

    async def reset(self) -> JsonObject:
        """See `Episode.reset`."""
        return await self._played("/reset", {})

    async def step(self, action: str) -> JsonObject:
        """See `Episode.step`."""
        return await self._played("/step", {"action": action})

    async def _played(self, path: str, body: JsonObject) -> JsonObject:
        self._calls += 1  # a step that is sent again, under its key, is not taken twice
        with phase("tool", self._timeouts.tool_seconds, tool=path):
            return await self._resources.play(self._session, path, body, key=f"{self._key}-{self._calls}")

    def _unverified(self, row: Row) -> JsonObject:
        """What the agent added to the row: the caller keeps it, so that only the grading has to be done again."""
        gained = {name: value for name, value in row.items() if name not in self._row or self._row[name] != value}
        return {UNVERIFIED: gained} if gained and len(dumps(gained)) <= MAX_UNVERIFIED_BYTES else {}
