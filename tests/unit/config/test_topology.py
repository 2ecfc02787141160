from pathlib import Path
from typing import Annotated

import pytest
from fastapi import FastAPI
from pydantic import Field, SecretStr, ValidationError

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import Incidental, ServiceRef
from rollmill.config.topology import (
    DatasetSpec,
    ServiceSpec,
    Topology,
    load_topology,
    parse_topology,
    service_settings,
    startup_order,
    topology_digest,
)
from rollmill.errors import ConfigError
from rollmill.server.agent import AgentSettings

HERE = __name__


class PolicySettings(ServiceSettings):
    base_url: str = "http://localhost:8000/v1"
    api_key: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    model: str = "small"
    fallback: Annotated[str, ServiceRef("model")] = ""


class DriverSettings(AgentSettings):
    model: Annotated[str, ServiceRef("model")]
    resources: Annotated[str, ServiceRef("resources")]
    max_steps: int = 8


class JudgedSettings(ServiceSettings):
    judge: Annotated[str, ServiceRef("model")] = ""


class EngineSettings(ServiceSettings):
    address: Annotated[str, Incidental()] = ""


def engine(settings: EngineSettings | None = None) -> FastAPI:
    return FastAPI()


def policy(settings: PolicySettings | None = None) -> FastAPI:
    return FastAPI()


def driver(settings: DriverSettings | None = None) -> FastAPI:
    return FastAPI()


def weather(settings: JudgedSettings | None = None) -> FastAPI:
    return FastAPI()


def loner() -> FastAPI:
    return FastAPI()


TEXT = f"""
services:
  weather_agent:
    kind: agent
    use: {HERE}:driver
    settings: {{model: policy, resources: weather, max_steps: 3}}
  weather: {{kind: resources, use: "{HERE}:weather", replicas: 2, settings: {{judge: judge}}}}
  policy:
    kind: model
    use: {HERE}:policy
    settings: {{base_url: "${{URL}}", api_key: "${{KEY}}", model: "${{NAME:-small}}", headers: {{x: plain-secret}}}}
  judge: {{kind: model, use: "{HERE}:policy", settings: {{token: plain-secret}}}}
datasets:
  - {{agent: weather_agent, path: tasks/weather.jsonl, num_repeats: 4, split: validation, limit: 10, name: weather}}
  - {{path: tasks/weather.jsonl, num_repeats: {{weather_agent: 2, _default: 1}}}}
"""
ENVIRON = {"URL": "http://engine:8000/v1", "KEY": "hunter2"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "weather.jsonl").write_text("{}\n")
    return tmp_path


@pytest.fixture
def topology(folder: Path) -> Topology:
    (folder / "topology.yaml").write_text(TEXT)
    return load_topology(folder / "topology.yaml", ENVIRON)


def test_a_good_file_is_loaded_as_it_says(topology: Topology, folder: Path) -> None:
    tasks = folder / "tasks" / "weather.jsonl"

    assert topology.source == folder / "topology.yaml"
    assert list(topology.services) == ["weather_agent", "weather", "policy", "judge"]
    assert topology.services["weather"] == ServiceSpec(
        kind="resources", use=f"{HERE}:weather", settings={"judge": "judge"}, replicas=2
    )
    assert topology.services["policy"].settings["base_url"] == "http://engine:8000/v1"
    assert topology.services["policy"].settings["model"] == "small"
    assert topology.services["policy"].replicas == 1
    assert topology.datasets == [
        DatasetSpec(agent="weather_agent", path=tasks, num_repeats=4, split="validation", limit=10, name="weather"),
        DatasetSpec(path=tasks, num_repeats={"weather_agent": 2, "_default": 1}),
    ]


def test_paths_of_datasets_are_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "topology.yaml").write_text(TEXT)

    loaded = load_topology(Path("topology.yaml"), ENVIRON)

    assert loaded.datasets[0].path == folder / "tasks" / "weather.jsonl"


def test_text_is_parsed_against_a_folder(folder: Path) -> None:
    parsed = parse_topology(TEXT, base_dir=folder, environ=ENVIRON)

    assert parsed.source is None
    assert parsed.datasets[0].path == folder / "tasks" / "weather.jsonl"


def test_the_environment_of_the_process_is_used_unless_another_is_given(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("URL", "http://process")
    monkeypatch.setenv("KEY", "k")

    parsed = parse_topology(TEXT, base_dir=folder)

    assert parsed.services["policy"].settings["base_url"] == "http://process"


def test_datasets_may_be_left_out() -> None:
    parsed = parse_topology(f"services: {{a: {{kind: model, use: '{HERE}:loner'}}}}", base_dir=Path("/"), environ={})

    assert parsed.datasets == []


def test_a_number_from_the_environment_is_understood() -> None:
    text = f"services: {{a: {{kind: model, use: '{HERE}:loner', replicas: '${{N}}'}}}}"

    assert parse_topology(text, base_dir=Path("/"), environ={"N": "3"}).services["a"].replicas == 3


def test_a_topology_cannot_be_changed(topology: Topology) -> None:
    with pytest.raises(ValidationError):
        topology.source = None  # type: ignore[misc]
    with pytest.raises(ValidationError):
        topology.services["policy"].replicas = 3  # type: ignore[misc]


def test_a_topology_does_not_show_environment_values(topology: Topology) -> None:
    assert "hunter2" not in repr(topology)
    assert "${KEY}" in repr(topology)


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"a: \xff", "is not UTF-8 text: invalid start byte at byte 3"),
    ],
)
def test_an_unreadable_file_is_told_with_its_name(tmp_path: Path, content: bytes | None, detail: str) -> None:
    path = tmp_path / "topology.yaml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        load_topology(path, {})

    assert caught.value.detail == f"{path}: {detail}"
    assert caught.value.extensions["errors"] == [{"pointer": "", "detail": detail}]


def test_the_settings_of_a_service_are_of_its_own_class_and_know_its_name(topology: Topology) -> None:
    settings = service_settings(topology, "policy")

    assert isinstance(settings, PolicySettings)
    assert settings.name == "policy"
    assert settings.base_url == "http://engine:8000/v1"
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "hunter2"
    assert service_settings(topology, "weather_agent") == DriverSettings(
        name="weather_agent", model="policy", resources="weather", max_steps=3
    )


def test_settings_of_an_unknown_service_are_an_error(topology: Topology) -> None:
    with pytest.raises(ConfigError) as caught:
        service_settings(topology, "polcy")

    assert caught.value.detail == (f"{topology.source}: services: no service is called 'polcy'; did you mean 'policy'?")


def test_wrong_settings_in_a_topology_made_by_hand_are_an_error() -> None:
    made = Topology(services={"a": ServiceSpec(kind="model", use=f"{HERE}:policy", settings={"modle": "x"})})

    with pytest.raises(ConfigError) as caught:
        service_settings(made, "a")

    assert caught.value.detail == "services.a.settings.modle: unknown setting; did you mean 'model'?"


def test_services_start_after_those_that_they_name(topology: Topology) -> None:
    order = startup_order(topology)

    assert sorted(order) == sorted(topology.services)
    assert order.index("judge") < order.index("weather") < order.index("weather_agent")
    assert order.index("policy") < order.index("weather_agent")


def test_services_that_name_nobody_start_models_first() -> None:
    kinds = {"a": "agent", "r": "resources", "m": "model"}
    made = Topology.model_validate({"services": {name: {"kind": kind, "use": f"{HERE}:loner"} for name, kind in kinds.items()}})  # fmt: skip

    assert startup_order(made) == ["m", "r", "a"]


def test_a_loop_has_no_startup_order() -> None:
    specs = {name: ServiceSpec(kind="model", use=f"{HERE}:policy", settings={"fallback": other}) for name, other in ("ab", "ba")}  # fmt: skip

    with pytest.raises(ConfigError, match="services need each other in a loop: a -> b -> a"):
        startup_order(Topology(services=specs))


def digest_of(folder: Path, text: str, **environ: str) -> str:
    (folder / "topology.yaml").write_text(text)
    return topology_digest(load_topology(folder / "topology.yaml", {**ENVIRON, **environ}))


def test_the_digest_is_a_sha256(topology: Topology) -> None:
    assert len(topology_digest(topology)) == 64
    assert topology_digest(topology) == topology_digest(topology)


def test_the_digest_does_not_depend_on_the_order_of_keys(folder: Path) -> None:
    swapped = TEXT.replace("{model: policy, resources: weather, max_steps: 3}", "{max_steps: 3, resources: weather, model: policy}")  # fmt: skip
    judge = TEXT[TEXT.index("  judge:") : TEXT.index("datasets:")]
    moved = TEXT.replace(judge, "").replace("services:\n", f"services:\n{judge}")

    assert len({digest_of(folder, text) for text in (TEXT, swapped, moved)}) == 1


def test_secrets_replicas_and_datasets_do_not_change_the_digest(folder: Path) -> None:
    digest = digest_of(folder, TEXT)

    assert digest_of(folder, TEXT, KEY="changed") == digest
    assert digest_of(folder, TEXT.replace("plain-secret", "changed")) == digest
    assert digest_of(folder, TEXT.replace("replicas: 2", "replicas: 3")) == digest
    assert digest_of(folder, TEXT.replace("num_repeats: 4", "num_repeats: 5")) == digest
    assert digest_of(folder, TEXT.replace(", headers: {x: plain-secret}", ", headers: {}")) == digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_steps: 3", "max_steps: 4"),
        ("NAME:-small", "NAME:-large"),
    ],
)
def test_the_digest_changes_with_what_the_file_says(folder: Path, old: str, new: str) -> None:
    assert digest_of(folder, TEXT) != digest_of(folder, TEXT.replace(old, new))


def test_a_setting_from_the_environment_counts_by_its_value(folder: Path) -> None:
    assert digest_of(folder, TEXT, NAME="large") != digest_of(folder, TEXT, NAME="small")


def test_incidental_settings_do_not_change_the_digest() -> None:
    def of(address: str) -> str:
        spec = ServiceSpec(kind="model", use=f"{HERE}:engine", settings={"address": address})
        return topology_digest(Topology(services={"a": spec}))

    assert of("http://one") == of("http://two")


def test_the_digest_is_the_same_in_another_folder(folder: Path) -> None:
    other = folder / "other"
    (other / "tasks").mkdir(parents=True)
    (other / "tasks" / "weather.jsonl").write_text("")

    assert digest_of(folder, TEXT) == digest_of(other, TEXT)


def test_the_digest_looks_inside_lists() -> None:
    def of(*values: object) -> str:
        spec = ServiceSpec(kind="model", use=f"{HERE}:loner", settings={"list": list(values)})
        return topology_digest(Topology(services={"a": spec}))

    assert of(1, 2) == of(1, 2)
    assert of(1, 2) != of(2, 1)
