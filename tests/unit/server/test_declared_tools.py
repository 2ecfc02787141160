from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import InputError
from rollmill.server import Session, tool
from rollmill.server.tools import RESERVED_NAMES, Tool, declared_tools


class Point(BaseModel):
    x: int
    y: int = 0


class Kit:
    @tool
    async def look_up(
        self, city: str, session: Session, unit: Literal["C", "F"] = "C", days: Annotated[int, Field(ge=1, le=9)] = 1
    ) -> str:
        """Look up the weather.

        Further text.
        """
        return f"{city} {unit} {days} {session.id}"

    @tool
    async def move(self, to: Point) -> JsonValue:
        """Move."""
        return {"x": to.x, "y": to.y}

    async def private(self) -> str:
        """Is no tool."""
        return ""


def tools() -> dict[str, Tool]:
    return declared_tools(Kit())


async def call(name: str, arguments: JsonObject) -> str:
    return await tools()[name].call(Session("s1", {}), arguments)


def test_only_marked_methods_are_tools_in_order_of_declaration() -> None:
    assert list(tools()) == ["look_up", "move"]


def test_the_signature_is_the_schema() -> None:
    definition = tools()["look_up"].definition
    assert definition["type"] == "function"
    assert definition["name"] == "look_up"
    assert definition["description"].startswith("Look up the weather.")
    parameters = definition["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["city"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"] == {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9, "default": 1},
    }


async def test_arguments_defaults_and_the_session_reach_the_method() -> None:
    assert await call("look_up", {"city": "Oslo"}) == "Oslo C 1 s1"
    assert await call("look_up", {"city": "Oslo", "unit": "F", "days": 3}) == "Oslo F 3 s1"


async def test_nested_arguments_arrive_as_models_and_values_leave_as_json() -> None:
    assert await call("move", {"to": {"x": 1}}) == '{"x":1,"y":0}'


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "city"),
        ({"city": "Oslo", "days": 10}, "days"),
        ({"city": "Oslo", "unit": "K"}, "unit"),
        ({"city": "Oslo", "colour": "red"}, "colour"),
        ({"city": 3}, "city"),
    ],
)
async def test_wrong_arguments_are_named_for_the_model(arguments: JsonObject, named: str) -> None:
    with pytest.raises(InputError, match=f"invalid arguments for look_up: {named}: "):
        await call("look_up", arguments)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_names_of_the_protocol_are_refused(name: str) -> None:
    async def method(self: object) -> str:
        return ""

    with pytest.raises(TypeError, match="protocol's own"):
        declared_tools(type("Owner", (), {name: tool(method)})())


def test_unusable_tools_are_refused_when_the_server_is_built() -> None:
    class NotAsync:
        @tool  # type: ignore[type-var]
        def act(self) -> str:
            return ""

    class Unannotated:
        @tool
        async def act(self, x) -> str:  # type: ignore[no-untyped-def]
            return str(x)

    class Variadic:
        @tool
        async def act(self, **rest: int) -> str:
            return str(rest)

    for owner, reason in ((NotAsync(), "async"), (Unannotated(), "annotation"), (Variadic(), "by its name")):
        with pytest.raises(TypeError, match=reason):
            declared_tools(owner)


def test_a_subclass_adds_tools_and_may_take_one_away() -> None:
    class More(Kit):
        @tool
        async def extra(self) -> str:
            return ""

        async def move(self, to: Point) -> JsonValue:
            return None

    assert set(declared_tools(More())) == {"look_up", "extra"}
