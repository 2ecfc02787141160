from collections.abc import Callable, Iterable

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.errors import RollmillError
from rollmill.openai import new_response, text_message
from rollmill.server.model import Model

Step = str | JsonObject | RollmillError | list[JsonObject]
USAGE = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}


class FakeModel(Model):
    """A model that gives prepared answers.

    Args:
        steps: what it answers in turn: text, an output item, a list of items, a whole response, or an error to
            raise. The last one is repeated. Or a function from request to such a step.
    """

    def __init__(
        self, steps: Iterable[Step] | Callable[[JsonObject], Step], settings: ServiceSettings | None = None
    ) -> None:
        super().__init__(settings)
        self._function = steps if callable(steps) else None
        self._steps = [] if callable(steps) else list(steps)
        self.requests: list[JsonObject] = []
        """Every request it was sent."""

    async def respond(self, request: JsonObject) -> JsonObject:
        """Give the next answer."""
        self.requests.append(request)
        step = self._function(request) if self._function else self._next()
        if isinstance(step, RollmillError):
            raise step
        if isinstance(step, dict) and step.get("object") == "response":
            return step
        output = [text_message(step)] if isinstance(step, str) else step if isinstance(step, list) else [step]
        return new_response(output, request=request, model="fake", usage=dict(USAGE))

    def _next(self) -> Step:
        return self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]


class FakeModels:
    """The `models` of an environment in a test, such as its judge: prepared answers, whichever model is asked.

    Args:
        steps: as `FakeModel` takes them.
    """

    def __init__(self, steps: Iterable[Step] | Callable[[JsonObject], Step]) -> None:
        self.model = FakeModel(steps)
        self.asked: list[str] = []
        """Names of the models that were asked, in order."""

    async def respond(self, name: str, request: JsonObject) -> JsonObject:
        """See `Models.respond`."""
        self.asked.append(name)
        return await self.model.respond(request)
