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
    """

    def __init__(
        self,
        steps: Iterable[Step] | Callable[[JsonObject], Step],
        *,
        tools: Mapping[str, Callable[[JsonObject], Awaitable[str]]] | None = None,
        reward: float = 1.0,
    ) -> None:
        self.model = FakeModel(steps)
        self.calls: list[tuple[str, str]] = []
        """Tool calls in order: name and arguments as JSON text."""
        self._tools = dict(tools or {})
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
