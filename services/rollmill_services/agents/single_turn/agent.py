from rollmill.contracts.json import JsonObject
from rollmill.server.agent import Agent, Episode


class SingleTurn(Agent):
    """Asks the model once and has the answer verified: for questions without tools."""

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Return the model's one response."""
        return await episode.respond(request)
