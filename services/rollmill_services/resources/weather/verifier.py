import hashlib
from typing import ClassVar

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill.server.tools import tool

_SKIES = ("clear", "partly cloudy", "overcast", "foggy", "drizzly", "rainy", "stormy", "snowy")
_WINDS = ("no wind", "a light breeze", "a steady wind", "strong gusts")
_CALLS = "weather_calls"


class Weather(Resources):
    """The smallest environment with a tool: invented weather, graded on whether the model asked for it."""

    reverify_mode: ClassVar[ReverifyMode] = "unsupported"

    @tool
    async def get_weather(self, city: str, session: Session) -> JsonObject:
        """Get the current weather in a city."""
        session.state[_CALLS] = session.state.get(_CALLS, 0) + 1
        return {"city": city, "weather_description": f"The weather in {city} is {invented_weather(city)}."}

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the session called the tool, or when the row does not require a call.

        Raises:
            InputError: `require_tool_call` is neither true nor false.
        """
        calls = session.state.get(_CALLS, 0)
        return Verdict(float(calls > 0 or not _requires_call(rollout)), {"tool_calls": calls})


def invented_weather(city: str) -> str:
    """Make up weather for a city: always the same for one name, whatever its case and outer spaces."""
    digest = hashlib.sha256(city.strip().casefold().encode("utf-8", "replace")).digest()
    sky, wind = _SKIES[digest[0] % len(_SKIES)], _WINDS[digest[1] % len(_WINDS)]
    return f"{sky} with {wind} and {digest[2] % 45 - 8} °C"


def _requires_call(rollout: Rollout) -> bool:
    required = rollout.field("require_tool_call")
    if required is None or isinstance(required, bool):
        return bool(required)
    fault = {"pointer": "/require_tool_call", "detail": "must be true or false"}
    raise InputError("'require_tool_call' must be true or false", errors=[fault])
