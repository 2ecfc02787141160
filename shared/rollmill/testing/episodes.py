from collections.abc import Awaitable, Callable, Iterable, Mapping

from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.testing.models import FakeModel, Step


class FakeEpisode:
    """An `Episode` for tests of agents: prepared model answers, tools as functions, a fixed reward.

    Args:
        steps: the model's answers, as `FakeModel` takes them.
        tools: name -> async function of the parsed arguments, returning the output text.
        reward: what `verify` gives.
        models: further model services by name, for `ask`.
        observations: answers of the environment: the first to `reset`, the others to each `step`; the last is repeated.
    """

    def __init__(
        self,
        steps: Iterable[Step] | Callable[[JsonObject], Step],
        *,
        tools: Mapping[str, Callable[[JsonObject], Awaitable[str]]] | None = None,
        reward: float = 1.0,
        models: Mapping[str, FakeModel] | None = None,
        observations: Iterable[JsonObject] = (),
    ) -> None:
        self.model = FakeModel(steps)
        self.calls: list[tuple[str, str]] = []
        """Tool calls in order: name and arguments as JSON text."""
        self.actions: list[str] = []
        """What `step` was given, in order."""
        self._tools = dict(tools or {})
        self._models = dict(models or {})
        self._observations = list(observations)
        self._reward = reward

    @property
    def tools(self) -> list[JsonObject]:
        """Definitions of the tools, which take anything."""
        return [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in self._tools]

    async def respond(self, request: JsonObject) -> JsonObject:
        """Give the next prepared answer."""
        return await self.model.respond(request)

    async def call_tool(self, name: str, arguments: str) -> str:
        """Call the function of that name; an unknown one is answered with an error text."""
        self.calls.append((name, arguments))
        if name not in self._tools:
            return dumps({"error": f"unknown tool {name!r}"}).decode()
        return await self._tools[name](loads(arguments or "{}"))

    async def verify(self, row: Row) -> Row:
        """Give the fixed reward."""
        return {**row, rows.REWARD: self._reward}

    def mcp_tool(self) -> JsonObject:
        """Give an entry that leads nowhere."""
        return {"type": "mcp", "server_label": "fake", "server_url": "http://127.0.0.1:9/mcp", "authorization": "token"}

    async def ask(self, model: str, request: JsonObject) -> JsonObject:
        """Give the next prepared answer of another model."""
        return await self._models[model].respond(request)

    async def reset(self) -> JsonObject:
        """Give the first observation."""
        return self._observation()

    async def step(self, action: str) -> JsonObject:
        """Give the next observation."""
        self.actions.append(action)
        return self._observation()

    def _observation(self) -> JsonObject:
        return self._observations.pop(0) if len(self._observations) > 1 else self._observations[0]
