from enum import Enum
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter, create_model

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill_services.models.scripted.arguments import CITIES, ArgumentWriter
from rollmill_services.models.scripted.draws import Draws, RepeatCounter
from rollmill_services.models.scripted.numeric import whole_numbers


def write(schema: JsonValue, text: str = "", numbers: list[int] | None = None, seed: int = 0) -> JsonObject:
    return ArgumentWriter(text, numbers or [], Draws(seed)).arguments(schema)


def one(schema: JsonValue, **context: JsonValue) -> JsonValue:
    return write({"type": "object", "properties": {"it": schema}, "required": ["it"]}, **context)["it"]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Tree(BaseModel):
    name: str
    children: "list[Tree]" = []


class Stop(BaseModel):
    city: str
    nights: Annotated[int, Field(ge=2, le=5)]


class Trip(BaseModel):
    stops: Annotated[list[Stop], Field(min_length=3)]
    colour: Colour
    kind: Literal["fast", "slow"]
    budget: Annotated[float, Field(gt=0, lt=1)]
    note: str | None
    tree: Tree
    answer: int | str
    optional: int = 5


@given(seed=st.integers(0, 1000), numbers=st.lists(st.integers(-100, 100), max_size=4))
@settings(max_examples=40)
def test_nested_arguments_fit_the_schema_they_were_made_from(seed: int, numbers: list[int]) -> None:
    arguments = write(Trip.model_json_schema(), numbers=numbers, seed=seed)

    assert len(Trip.model_validate(arguments).stops) == 3
    assert "optional" not in arguments


LIMITS = st.tuples(st.integers(-50, 50), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(limits=LIMITS, numbers=st.lists(st.integers(-60, 90), max_size=3), whole=st.booleans())
@settings(max_examples=60)
def test_numbers_stay_within_their_limits(limits: tuple[int, int], numbers: list[int], whole: bool) -> None:
    kind = int if whole else float
    model = create_model("Bounded", it=(kind, Field(ge=limits[0], le=limits[1])))

    model.model_validate(write(model.model_json_schema(), numbers=numbers), strict=whole)


@given(low=st.integers(-40, 40), step=st.integers(1, 9))
@settings(max_examples=60)
def test_exclusive_limits_and_multiples_are_respected(low: int, step: int) -> None:
    kind = Annotated[int, Field(gt=low, lt=low + 2 * step + 1, multiple_of=step)]

    TypeAdapter(kind).validate_python(one(TypeAdapter(kind).json_schema()))


def test_the_message_numbers_fill_numeric_parameters_in_order_and_only_where_they_fit() -> None:
    schema = {
        "properties": {
            "small": {"type": "integer", "maximum": 10},
            "any": {"type": "integer"},
            "ratio": {"type": "number"},
            "left": {"type": "integer", "minimum": 3},
        },
        "required": ["small", "any", "ratio", "left"],
    }

    assert write(schema, numbers=[99, 7, -2, 5]) == {"small": 7, "any": -2, "ratio": 5, "left": 3}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"const": 3}, 3),
        ({"const": None}, None),
        ({"type": "string", "default": "usual"}, "usual"),
        ({"enum": ["only"]}, "only"),
        ({"type": "string", "examples": ["shown"]}, "shown"),
        ({"type": ["null", "string"]}, "it"),
        ({"type": "null"}, None),
        ({"type": "string", "minLength": 4}, "itxx"),
        ({"type": "string", "maxLength": 1}, "i"),
        ({"type": "string", "format": "date"}, "2025-01-15"),
        ({"type": "array", "items": {"type": "integer"}}, [0]),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["it", "it 2"]),
        ({"type": "array", "maxItems": 0}, []),
        ({"items": {"const": 1}}, [1]),
        ({"properties": {"in": {"const": 1}}, "required": ["in"]}, {"in": 1}),
        ({"anyOf": [{"type": "null"}, {"const": 2}]}, 2),
        ({"oneOf": [{"type": "null"}]}, None),
        ({"allOf": [{"type": "integer"}, {"minimum": 4}]}, 4),
        ({"$ref": "#/absent"}, "it"),
        ({}, "it"),
        (True, "it"),
        ({"type": "integer", "minimum": 5, "maximum": 4}, 0),
        ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
        ({"type": "integer", "maximum": -3}, -3),
    ],
)
def test_each_keyword_is_followed(schema: JsonValue, expected: JsonValue) -> None:
    assert one(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [None, {}, [], {"type": "object"}, {"required": "city"}, {"allOf": {}, "anyOf": "x", "required": [{}, 3]}],
)
def test_a_tool_without_required_parameters_gets_no_arguments(schema: JsonValue) -> None:
    assert write(schema) == {}


def test_all_of_merges_properties_and_required_names_through_references() -> None:
    schema = {
        "$defs": {"a": {"properties": {"x": {"const": 1}}, "required": ["x"]}},
        "allOf": [{"$ref": "#/$defs/a"}, {"properties": {"y": {"const": 2}}, "required": ["y"]}],
    }

    assert write(schema) == {"x": 1, "y": 2}


def test_references_with_escaped_names_are_found() -> None:
    schema = {
        "$defs": {"a/b~c": {"const": 7}},
        "properties": {"it": {"$ref": "#/$defs/a~1b~0c"}},
        "required": ["it"],
    }

    assert write(schema) == {"it": 7}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"anyOf": [{"$ref": "#"}]},
        {"properties": {"me": {"$ref": "#"}}, "required": ["me"]},
        {"properties": {"a": {"type": "array", "minItems": 10**9, "items": {"const": 1}}}, "required": ["a"]},
        {"properties": {"a": {"type": "string", "minLength": 10**9}}, "required": ["a"]},
    ],
)
def test_schemas_without_an_end_are_cut_off(schema: JsonObject) -> None:
    assert len(str(write(schema))) < 20_000


@pytest.mark.parametrize(
    ("text", "city"),
    [
        ("How is the weather in San Francisco and in Oslo?", "San Francisco"),
        ("Forecast for Quito, please", "Quito"),
        ("Is it raining in São Paulo today?", "São Paulo"),
    ],
)
def test_a_city_is_taken_from_the_message(text: str, city: str) -> None:
    schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}

    assert write(schema, text=text) == {"city": city}


def test_a_city_that_the_message_does_not_name_is_drawn() -> None:
    schema = {"properties": {"city": {"type": "string"}}, "required": ["city"]}
    drawn = {write(schema, text="What is the weather?", seed=seed)["city"] for seed in range(60)}

    assert drawn == set(CITIES)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("add 4, then add 7.", [4, 7]),
        ("add -5 and +3", [-5, 3]),
        ("1,000 or 12,345,678", [1000, 12_345_678]),
        ("2.5 of x1 and 3x, not v2.0", []),
        ("5-3", [5, 3]),
        ("9" * 5000, []),
        ("", []),
    ],
)
def test_whole_numbers_are_read_in_order(text: str, numbers: list[int]) -> None:
    assert whole_numbers(text) == numbers


@given(st.integers(0, 10**6), st.floats(0.05, 0.95))
@settings(max_examples=50)
def test_draws_are_repeatable_and_in_range(seed: int, mean: float) -> None:
    draws = Draws(b"x", seed)

    assert 0 <= draws.unit("a") < 1
    assert 2 <= draws.whole("b", 2, 5) <= 5
    assert 0 <= draws.beta("c", mean) <= 1
    assert Draws(b"x", seed).unit("a") == draws.unit("a") != draws.unit("b")


def test_draws_are_even_and_betas_have_their_mean() -> None:
    units = [Draws(n).unit("a") for n in range(2000)]
    betas = [Draws(n).beta("a", 0.3) for n in range(2000)]

    assert abs(sum(units) / 2000 - 0.5) < 0.03
    assert abs(sum(betas) / 2000 - 0.3) < 0.03
    assert (Draws(1).beta("a", 0.0), Draws(1).beta("a", 1.0)) == (0.0, 1.0)


def test_the_repeat_counter_forgets_what_it_has_not_seen_for_longest() -> None:
    counter = RepeatCounter(limit=2)
    seen = [counter.seen_before(key) for key in (b"a", b"b", b"a", b"c", b"a", b"b")]

    assert seen == [0, 0, 1, 0, 2, 0]
    assert len(counter) == 2
