import json

import pytest

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout
from rollmill.errors import InputError
from rollmill.server.sessions import Session
from rollmill.server.tools import declared_tools
from rollmill_services.resources.weather.app import create_app
from rollmill_services.resources.weather.verifier import Weather, invented_weather


async def call(weather: Weather, session: Session, city: str) -> JsonObject:
    text = await declared_tools(weather)["get_weather"].call(session, {"city": city})
    answer: JsonObject = json.loads(text)
    return answer


async def test_the_tool_tells_the_weather_of_the_city_that_was_asked_for() -> None:
    answer = await call(Weather(), Session("s", {}), "Lisbon")

    assert set(answer) == {"city", "weather_description"}
    assert answer["city"] == "Lisbon"
    assert answer["weather_description"] == f"The weather in Lisbon is {invented_weather('Lisbon')}."


@pytest.mark.parametrize("city", ["", "São Paulo", "東京", "x" * 100_000, "\ud800"])
def test_any_name_has_a_weather(city: str) -> None:
    assert "°C" in invented_weather(city)


def test_the_weather_is_the_same_each_time_and_differs_between_cities() -> None:
    cities = ["Lisbon", "Oslo", "Lima", "Quito", "Cairo", "Kyoto", "Bergen", "Naples"]

    assert [invented_weather(city) for city in cities] == [invented_weather(f" {city.upper()} ") for city in cities]
    assert len({invented_weather(city) for city in cities}) > len(cities) // 2


async def test_it_declares_one_tool_with_one_required_argument() -> None:
    (tool,) = declared_tools(Weather()).values()

    assert tool.name == "get_weather"
    assert tool.description
    assert tool.definition["parameters"]["required"] == ["city"]


@pytest.mark.parametrize(("required", "reward"), [(None, 1.0), (False, 1.0), (True, 0.0)])
async def test_without_a_call_the_reward_depends_on_whether_one_is_required(
    required: bool | None, reward: float
) -> None:
    verdict = await Weather().verify(Rollout({"require_tool_call": required}), Session("s", {}))

    assert verdict.reward == reward
    assert verdict.details == {"tool_calls": 0}


async def test_a_required_call_is_rewarded_in_the_session_that_made_it_only() -> None:
    weather, caller, other = Weather(), Session("a", {}), Session("b", {})
    await call(weather, caller, "Oslo")
    await call(weather, caller, "Lima")
    rollout = Rollout({"verifier_metadata": {"require_tool_call": True}})

    assert (await weather.verify(rollout, caller)).reward == 1.0
    assert (await weather.verify(rollout, caller)).details == {"tool_calls": 2}
    assert (await weather.verify(rollout, other)).reward == 0.0


@pytest.mark.parametrize("value", ["yes", 1, []])
async def test_a_requirement_that_is_not_a_boolean_is_an_error_that_names_it(value: object) -> None:
    with pytest.raises(InputError, match="require_tool_call") as caught:
        await Weather().verify(Rollout({"require_tool_call": value}), Session("s", {}))

    assert caught.value.extensions["errors"] == [
        {"pointer": "/require_tool_call", "detail": "must be true or false"},
    ]


def test_its_verdicts_need_the_live_session() -> None:
    assert Weather.reverify_mode == "unsupported"
    assert create_app(ServiceSettings(name="weather")).title
