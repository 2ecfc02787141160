import copy
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple

import pytest
import yaml
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field, SecretStr, field_validator, model_validator

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import ServiceRef
from rollmill.config.topology import load_topology, parse_topology
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import ConfigError
from rollmill.server.agent import Agent, AgentSettings, Episode

HERE = __name__
WITHHELD = "not accepted (the reason is withheld: it may show a secret or a value of the environment)"


class PolicySettings(ServiceSettings):
    base_url: str = "http://localhost"
    api_key: SecretStr | None = None
    temperature: float = Field(default=1.0, ge=0)
    fallback: Annotated[str, ServiceRef("model")] = ""
    neighbours: list[Annotated[str, ServiceRef()]] = Field(default_factory=list)

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if not url.startswith("http"):
            raise ValueError(f"{url!r} is not a URL")
        return url

    @model_validator(mode="after")
    def _key_is_long(self) -> "PolicySettings":
        if self.api_key and len(self.api_key.get_secret_value()) < 4:
            raise ValueError(f"{self.api_key.get_secret_value()} is too short for {self.base_url}")
        return self


class DriverSettings(AgentSettings):
    model: Annotated[str, ServiceRef("model")] = Field(min_length=1)
    resources: Annotated[str, ServiceRef("resources")] = Field(min_length=1)
    max_steps: int = Field(default=8, ge=1)


class Driver(Agent):
    Settings = DriverSettings

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)


def policy(settings: PolicySettings | None = None) -> FastAPI:
    return FastAPI()


def weather() -> FastAPI:
    return FastAPI()


def good() -> JsonObject:
    return {
        "services": {
            "policy": {"kind": "model", "use": f"{HERE}:policy", "settings": {"base_url": "http://engine"}},
            "weather": {"kind": "resources", "use": f"{HERE}:weather"},
            "driver": {
                "kind": "agent",
                "use": f"{HERE}:Driver",
                "settings": {"model": "policy", "resources": "weather"},
            },
        },
        "datasets": [{"agent": "driver", "path": "tasks.jsonl"}],
    }


def at(value: JsonValue, path: str) -> tuple[JsonValue, str | int]:
    *parents, last = path.split("/")
    for part in parents:
        value = value[int(part)] if isinstance(value, list) else value.setdefault(part, {})
    return value, int(last) if isinstance(value, list) else last


def put(path: str, value: JsonValue) -> Callable[[JsonObject], None]:
    def edit(content: JsonObject) -> None:
        holder, key = at(content, path)
        holder[key] = value

    return edit


def drop(path: str) -> Callable[[JsonObject], None]:
    def edit(content: JsonObject) -> None:
        holder, key = at(content, path)
        del holder[key]

    return edit


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.jsonl").write_text("{}\n")
    return tmp_path


def error_of(text: str, folder: Path, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_topology(text, base_dir=folder, environ=environ)
    return caught.value


def faults_of(content: JsonValue, folder: Path, **environ: str) -> list[tuple[str, str]]:
    error = error_of(yaml.safe_dump(content, sort_keys=False), folder, **environ)
    faults = [(fault["pointer"], fault["detail"]) for fault in error.extensions["errors"]]
    assert error.detail == "\n".join(": ".join(filter(None, fault)) for fault in faults)
    return faults


def test_the_content_that_the_tests_spoil_is_good(folder: Path) -> None:
    topology = parse_topology(yaml.safe_dump(good()), base_dir=folder, environ={})

    assert len(topology.services) == 3


NAME_RULE = "not a name; a name has 1 to 100 letters, digits, '.', '_' and '-', with a letter or digit first"
NOT_AN_INTEGER = "Input should be a valid integer, unable to parse string as an integer"
UNSET = "the environment variable {0} is not set; set it, or write ${{{0}:-default}}".format

BAD = [
    # the file as a whole
    (put("extra", 1), [("extra", "unknown key")]),
    (put("dataset", []), [("dataset", "unknown key; did you mean 'datasets'?")]),
    (put("source", "x"), [("source", "unknown key")]),
    (put("datasets", {}), [("datasets", "Input should be a valid list")]),
    # one service
    (put("services/policy/replica", 2), [("services.policy.replica", "unknown key; did you mean 'replicas'?")]),
    (put("services/policy/replicas", 0), [("services.policy.replicas", "Input should be greater than or equal to 1")]),
    (put("services/policy/replicas", 1025), [("services.policy.replicas", "Input should be less than or equal to 1024")]),
    (put("services/policy/replicas", "many"), [("services.policy.replicas", NOT_AN_INTEGER)]),
    (put("services/policy/replicas", True), [("services.policy.replicas", "Value error, a number is needed, not true or false")]),
    (put("services/policy/kind", "modle"), [("services.policy.kind", "Input should be 'model', 'resources' or 'agent'")]),
    (put("services/policy/settings", [1]), [("services.policy.settings", "must be a mapping")]),
    (put("services/policy/use", ""), [("services.policy.use", "String should have at least 1 character")]),
    (put("services/policy/use", 3), [("services.policy.use", "Input should be a valid string")]),
    (drop("services/weather/use"), [("services.weather.use", "required")]),
    (drop("services/weather/kind"), [("services.weather.kind", "required")]),
    (put("services/spare", None), [("services.spare", "must be a mapping")]),
    (put("services/policy/use", f"{HERE}:polcy"), [("services.policy.use", f"service '{HERE}:polcy': '{HERE}' has no attribute 'polcy'; did you mean 'policy'?")]),
    (put("services/driver/kind", "model"), [("services.driver.kind", f"'{HERE}:Driver' is of kind 'agent', not 'model'")]),
    # names
    (put("services/head", {"kind": "model", "use": f"{HERE}:policy"}), [("services.head", "the name is reserved for Rollmill's own service")]),
    (put("services/collector", {"kind": "model", "use": f"{HERE}:policy"}), [("services.collector", "the name is reserved for Rollmill's own service")]),
    (put("services/profiler", {"kind": "model", "use": f"{HERE}:policy"}), [("services.profiler", "the name is reserved for Rollmill's own service")]),
    (put("services/a b", {"kind": "model", "use": f"{HERE}:policy"}), [("services.a b", NAME_RULE)]),
    (put("services/-a", {"kind": "model", "use": f"{HERE}:policy"}), [("services.-a", NAME_RULE)]),
    (put("services/" + "a" * 101, {"kind": "model", "use": f"{HERE}:policy"}), [("services." + "a" * 101, NAME_RULE)]),
    # settings
    (put("services/driver/settings/max_step", 2), [("services.driver.settings.max_step", "unknown setting; did you mean 'max_steps'?")]),
    (put("services/driver/settings/max_steps", "few"), [("services.driver.settings.max_steps", NOT_AN_INTEGER)]),
    (put("services/driver/settings/model", 5), [("services.driver.settings.model", "Input should be a valid string")]),
    (put("services/driver/settings/model", ""), [("services.driver.settings.model", "String should have at least 1 character")]),
    (drop("services/driver/settings/model"), [("services.driver.settings.model", "required")]),
    (drop("services/driver/settings"), [("services.driver.settings.model", "required"), ("services.driver.settings.resources", "required")]),
    (put("services/policy/settings/base_url", "ftp://x"), [("services.policy.settings.base_url", "Value error, 'ftp://x' is not a URL")]),
    (put("services/policy/settings/token", 12345), [("services.policy.settings.token", "Input should be a valid string")]),
    (put("services/policy/settings/api_key", "abc"), [("services.policy.settings", WITHHELD)]),
    (put("services/policy/settings/name", "other"), [("services.policy.settings.name", "a service is called by its key under `services`")]),
    # references
    (put("services/driver/settings/model", "polcy"), [("services.driver.settings.model", "no service is called 'polcy'; did you mean 'policy'?")]),
    (put("services/driver/settings/model", "zzz"), [("services.driver.settings.model", "no service is called 'zzz'")]),
    (put("services/driver/settings/model", "weather"), [("services.driver.settings.model", "'weather' is of kind 'resources', not 'model'")]),
    (put("services/driver/settings/resources", "policy"), [("services.driver.settings.resources", "'policy' is of kind 'model', not 'resources'")]),
    (put("services/policy/settings/neighbours", ["weather", "wether", "driver"]), [("services.policy.settings.neighbours.1", "no service is called 'wether'; did you mean 'weather'?"), ("services.policy.settings.neighbours.2", "services need each other in a loop: policy -> driver -> policy")]),
    (put("services/policy/settings/fallback", "policy"), [("services.policy.settings.fallback", "services need each other in a loop: policy -> policy")]),
    # datasets
    (put("datasets/0/agent", "drivr"), [("datasets.0.agent", "no service is called 'drivr'; did you mean 'driver'?")]),
    (put("datasets/0/agent", "weather"), [("datasets.0.agent", "'weather' is of kind 'resources', not 'agent'")]),
    (put("datasets/0/agent", ""), [("datasets.0.agent", "String should have at least 1 character")]),
    (drop("datasets/0/path"), [("datasets.0.path", "required")]),
    (put("datasets/0/split", "test"), [("datasets.0.split", "Input should be 'train', 'validation' or 'benchmark'")]),
    (put("datasets/0/limit", 0), [("datasets.0.limit", "Input should be greater than or equal to 1")]),
    (put("datasets/0/num_repeats", 0), [("datasets.0.num_repeats", "Input should be greater than or equal to 1, or: must be a mapping")]),
    (put("datasets/0/num_repeats", {"driver": 0, "_default": -1}), [("datasets.0.num_repeats.driver", "Input should be greater than or equal to 1"), ("datasets.0.num_repeats._default", "Input should be greater than or equal to 1")]),
    (put("datasets/0/repeats", 2), [("datasets.0.repeats", "unknown key; did you mean 'num_repeats'?")]),
    (put("datasets/0", "tasks.jsonl"), [("datasets.0", "must be a mapping")]),
    # the environment
    (put("services/policy/settings/base_url", "${URL}/${VERSION}"), [("services.policy.settings.base_url", UNSET("URL")), ("services.policy.settings.base_url", UNSET("VERSION"))]),
    (put("services/driver/settings/model", "${MODEL}"), [("services.driver.settings.model", UNSET("MODEL"))]),
    (put("services/policy/use", "${USE}"), [("services.policy.use", UNSET("USE"))]),
    (put("services/policy/kind", "${KIND}"), [("services.policy.kind", UNSET("KIND"))]),
    (put("datasets/0/path", "${TASKS}"), [("datasets.0.path", UNSET("TASKS"))]),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "faults"), BAD)
def test_a_problem_is_told_at_its_path(
    folder: Path, spoil: Callable[[JsonObject], None], faults: list[tuple[str, str]]
) -> None:
    content = good()
    spoil(content)

    assert faults_of(content, folder) == faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", [("", "must be a mapping with `services` in it")]),
        ("[]", [("", "must be a mapping with `services` in it")]),
        ("{}", [("services", "required")]),
        ("services: [a]", [("services", "must be a mapping")]),
        ("services:", [("services", "must be a mapping")]),
        ("services: {}\nservices: {}\nmore: 1", [("services", "the key is there twice (lines 1 and 2)"), ("more", "unknown key")]),
        ("services: {a: {kind: model}\n", [("line 2, column 1", "not valid YAML: while parsing a flow mapping expected ',' or '}', but got '<stream end>'")]),
        ("!python/object 1", [("", "the tag !python/object is not supported")]),
    ],
)  # fmt: skip
def test_a_file_that_is_no_topology_is_told_so(folder: Path, text: str, faults: list[tuple[str, str]]) -> None:
    error = error_of(text, folder)

    assert error.extensions["errors"] == [{"pointer": pointer, "detail": detail} for pointer, detail in faults]


def test_an_unknown_entry_point_is_told_with_the_nearest(folder: Path) -> None:
    content = good()
    content["services"]["weather"]["use"] = "wether"

    [(pointer, detail)] = faults_of(content, folder)

    assert pointer == "services.weather.use"
    assert detail.startswith("unknown service 'wether'; did you mean 'weather'? known: ")


def test_a_missing_dataset_file_is_told_with_the_path_that_was_tried(folder: Path) -> None:
    content = good()
    content["datasets"] = [{"path": "no.jsonl"}, {"path": "."}, {"path": "a" * 5000}, {"path": "a\0b"}]

    faults = dict(faults_of(content, folder))

    assert faults["datasets.0.path"] == f"no such file: '{folder}/no.jsonl'"
    assert faults["datasets.1.path"] == f"not a file: '{folder}'"
    assert set(faults) == {f"datasets.{index}.path" for index in range(4)}


def test_each_line_of_the_error_starts_with_the_file(folder: Path) -> None:
    content = good()
    put("services/driver/settings/model", "polcy")(content)
    put("extra", 1)(content)
    path = folder / "topology.yaml"
    path.write_text(yaml.safe_dump(content))

    with pytest.raises(ConfigError) as caught:
        load_topology(path, {})

    assert caught.value.detail == (
        f"{path}: extra: unknown key\n"
        f"{path}: services.driver.settings.model: no service is called 'polcy'; did you mean 'policy'?"
    )


def chain(*edges: str) -> JsonObject:
    names = dict.fromkeys("".join(edges))
    follows = {name: [edge[1] for edge in edges if edge[0] == name] for name in names}
    return {
        "services": {
            name: {"kind": "model", "use": f"{HERE}:policy", "settings": {"neighbours": follows[name]}}
            for name in names
        }
    }


@pytest.mark.parametrize(
    ("edges", "faults"),
    [
        (("ab", "ba"), [("services.a.settings.neighbours.0", "a -> b -> a")]),
        (("ab", "bc", "ca"), [("services.a.settings.neighbours.0", "a -> b -> c -> a")]),
        (("ab", "bc", "cb"), [("services.b.settings.neighbours.0", "b -> c -> b")]),
        (("ab", "ba", "cd", "dc"), [("services.a.settings.neighbours.0", "a -> b -> a"), ("services.c.settings.neighbours.0", "c -> d -> c")]),
        (("aa", "ab", "ba"), [("services.a.settings.neighbours.0", "a -> a"), ("services.a.settings.neighbours.1", "a -> b -> a")]),
    ],
)  # fmt: skip
def test_a_loop_is_printed_once_as_a_path(folder: Path, edges: tuple[str, ...], faults: list[tuple[str, str]]) -> None:
    expected = {(pointer, f"services need each other in a loop: {path}") for pointer, path in faults}
    found = faults_of(chain(*edges), folder)

    assert set(found) == expected
    assert len(found) == len(expected)


def test_services_that_share_a_dependency_are_no_loop(folder: Path) -> None:
    text = yaml.safe_dump(chain("ab", "ac", "bd", "cd"))

    assert len(parse_topology(text, base_dir=folder, environ={}).services) == 4


@settings(max_examples=40)
@given(st.sets(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde")), min_size=1, max_size=10))
def test_a_loop_is_told_exactly_when_there_is_one(edges: set[tuple[str, str]]) -> None:
    reached = set(edges)
    for middle in "abcde":
        reached |= {(a, d) for a, b in reached for c, d in reached if b == middle == c}
    content = chain(*(a + b for a, b in sorted(edges)))

    try:
        parse_topology(yaml.safe_dump(content), base_dir=Path("/"), environ={})
        told = []
    except ConfigError as error:
        told = [fault["detail"].removeprefix("services need each other in a loop: ").split(" -> ") for fault in error.extensions["errors"]]  # fmt: skip

    assert bool(told) == any(a == b for a, b in reached)
    for loop in told:
        assert loop[0] == loop[-1]
        assert set(pairwise(loop)) <= edges


class Spoiled(NamedTuple):
    spoil: Callable[[JsonObject], None]
    pointer: str
    detail: str


# Each spoils another place, so that any mix of them is possible.
INDEPENDENT = [
    Spoiled(put("extra", 1), "extra", "unknown key"),
    Spoiled(put("services/policy/replica", 2), "services.policy.replica", "unknown key; did you mean 'replicas'?"),
    Spoiled(put("services/policy/replicas", 0), "services.policy.replicas", "Input should be greater than or equal to 1"),
    Spoiled(put("services/policy/settings/base_url", "${URL}"), "services.policy.settings.base_url", UNSET("URL")),
    Spoiled(put("services/policy/settings/api_key", "${KEY}"), "services.policy.settings.api_key", UNSET("KEY")),
    Spoiled(put("services/policy/settings/temperature", -1), "services.policy.settings.temperature", "Input should be greater than or equal to 0"),
    Spoiled(put("services/policy/settings/fallback", "policy"), "services.policy.settings.fallback", "services need each other in a loop: policy -> policy"),
    Spoiled(put("services/policy/settings/tmp", 1), "services.policy.settings.tmp", "unknown setting"),
    Spoiled(put("services/weather/use", f"{HERE}:wether"), "services.weather.use", f"service '{HERE}:wether': '{HERE}' has no attribute 'wether'; did you mean 'weather'?"),
    Spoiled(put("services/weather/replicas", 2000), "services.weather.replicas", "Input should be less than or equal to 1024"),
    Spoiled(put("services/driver/settings/model", "polcy"), "services.driver.settings.model", "no service is called 'polcy'; did you mean 'policy'?"),
    Spoiled(put("services/driver/settings/resources", "policy"), "services.driver.settings.resources", "'policy' is of kind 'model', not 'resources'"),
    Spoiled(put("services/head", {"kind": "model", "use": f"{HERE}:policy"}), "services.head", "the name is reserved for Rollmill's own service"),
    Spoiled(put("services/_x", {"kind": "model", "use": f"{HERE}:policy"}), "services._x", NAME_RULE),
    Spoiled(put("services/spare", 1), "services.spare", "must be a mapping"),
    Spoiled(put("datasets/0/agent", "drivr"), "datasets.0.agent", "no service is called 'drivr'; did you mean 'driver'?"),
    Spoiled(put("datasets/0/path", "${TASKS}"), "datasets.0.path", UNSET("TASKS")),
    Spoiled(put("datasets/0/limit", 0), "datasets.0.limit", "Input should be greater than or equal to 1"),
]  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spoiled=st.sets(st.sampled_from(range(len(INDEPENDENT))), min_size=1), twice=st.booleans())
def test_any_mix_of_problems_is_told_with_each_once(folder: Path, spoiled: set[int], twice: bool) -> None:
    content = good()
    for index in spoiled:
        INDEPENDENT[index].spoil(content)
    text = yaml.safe_dump(content, sort_keys=False) + ("datasets: []\n" if twice else "")
    lines = len(text.splitlines())
    first = text.splitlines().index("datasets:") + 1
    expected = [(INDEPENDENT[index].pointer, INDEPENDENT[index].detail) for index in spoiled]
    expected += [("datasets", f"the key is there twice (lines {first} and {lines})")] if twice else []

    told = [(fault["pointer"], fault["detail"]) for fault in error_of(text, folder).extensions["errors"]]

    assert Counter(told) == Counter(expected)


PLACES = [
    "services/policy/kind",
    "services/policy/use",
    "services/policy/replicas",
    "services/policy/settings/base_url",
    "services/policy/settings/api_key",
    "services/policy/settings/temperature",
    "services/policy/settings/fallback",
    "services/policy/settings/name",
    "services/driver/settings/model",
    "services/driver/settings/resources",
    "services/driver/settings/max_steps",
    "datasets/0/agent",
    "datasets/0/path",
    "datasets/0/split",
    "datasets/0/num_repeats",
    "datasets/0/limit",
    "extra",
]
_tokens = st.text("qxzjQXZJ89#~", min_size=3, max_size=12)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.sets(st.sampled_from(PLACES), min_size=1), value=_tokens, short_key=st.booleans())
def test_no_environment_value_is_ever_in_the_error(folder: Path, places: set[str], value: str, short_key: bool) -> None:
    content = copy.deepcopy(good())
    for place in places:
        put(place, "${SECRET}")(content)
    put("services/driver/colour", "blue")(content)
    put("services/policy/settings/token", "qqq" if short_key else "q" * 9)(content)

    error = error_of(yaml.safe_dump(content), folder, SECRET=value)

    shown = f"{error} {error.extensions}"
    assert value not in shown
    assert "services.driver.colour" in shown


def test_names_from_the_environment_are_shown_as_they_are_written(folder: Path) -> None:
    content = good()
    put("services/driver/settings/model", "${MODEL}")(content)
    put("services/weather/use", "${USE}")(content)
    put("services/policy/settings/fallback", "${BACK}")(content)
    put("datasets/0/path", "${DIR}/x.jsonl")(content)

    assert faults_of(content, folder, MODEL="polcy", USE="wether", BACK="weather", DIR="/nowhere") == [
        ("services.weather.use", "'${USE}' names no usable service"),
        ("services.policy.settings.fallback", "'${BACK}' is of kind 'resources', not 'model'"),
        ("services.driver.settings.model", "no service is called '${MODEL}'"),
        ("datasets.0.path", "no such file: '${DIR}/x.jsonl'"),
    ]


def test_a_kind_from_the_environment_is_shown_as_it_is_written(folder: Path) -> None:
    content = good()
    put("services/driver/kind", "${KIND}")(content)

    assert faults_of(content, folder, KIND="model") == [
        ("services.driver.kind", f"'{HERE}:Driver' is of kind 'agent', not '${{KIND}}'"),
    ]


def test_a_kind_from_the_environment_is_shown_as_written_where_the_service_is_named(folder: Path) -> None:
    content = good()
    put("services/weather/kind", "${KIND}")(content)

    assert faults_of(content, folder, KIND="model") == [
        ("services.driver.settings.resources", "'weather' is of kind '${KIND}', not 'resources'"),
    ]
