import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from fastapi import FastAPI

from rollmill.config.loading import find_service, known_services
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import ConfigError
from rollmill.server.agent import Agent, AgentSettings, Episode
from rollmill.server.model import Model
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session

if TYPE_CHECKING:
    OnlyForTypeCheckers = ServiceSettings

HERE = __name__


class EchoSettings(ServiceSettings):
    times: int = 1


def create_echo(settings: EchoSettings | None = None) -> FastAPI:
    return FastAPI(title=f"echo {settings.times if settings else 'by environment'}")


def create_late(settings: "EchoSettings | None" = None) -> "OnlyForTypeCheckersToo":  # type: ignore[name-defined] # noqa: F821
    return FastAPI()


def create_agent(settings: AgentSettings) -> FastAPI:
    return FastAPI()


def create_plain() -> FastAPI:
    return FastAPI(title="plain")


def create_untyped(settings=None):  # type: ignore[no-untyped-def]
    return FastAPI()


def create_mistyped(settings: int = 0) -> FastAPI:
    return FastAPI()


def create_unresolved(settings: "OnlyForTypeCheckers | None" = None) -> FastAPI:
    return FastAPI()


def needs_more(first: str, settings: EchoSettings) -> FastAPI:
    return FastAPI()


class Echo(Model):
    Settings: ClassVar[type[ServiceSettings]] = EchoSettings

    async def respond(self, request: JsonObject) -> JsonObject:
        return request


class Always(Resources):
    async def verify(self, rollout: Rollout, session: Session) -> Verdict | float:
        return 1.0


class Half(Resources):
    pass


class Once(Agent):
    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        return await episode.respond(request)


class Factories:
    create_echo = staticmethod(create_echo)


number = 3


def problem_of(use: str) -> str:
    with pytest.raises(ConfigError) as caught:
        find_service(use)
    return caught.value.detail


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the Python path, into which a test installs packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


def install(folder: Path, distribution: str, **services: str) -> None:
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = [f"{name} = {target}" for name, target in services.items()]
    (info / "entry_points.txt").write_text("\n".join(["[rollmill.services]", *lines]))


SERVICE = """
from fastapi import FastAPI
from rollmill.config.settings import ServiceSettings

def create_app(settings: ServiceSettings | None = None) -> FastAPI:
    return FastAPI()
"""


def test_a_factory_is_found_with_its_settings() -> None:
    found = find_service(f"{HERE}:create_echo")

    assert found.use == f"{HERE}:create_echo"
    assert found.settings_type is EchoSettings
    assert found.kind is None
    assert found.factory(EchoSettings(times=3)).title == "echo 3"
    assert found.factory(None).title == "echo by environment"


def test_a_factory_without_settings_takes_those_of_every_service() -> None:
    found = find_service(f"{HERE}:create_plain")

    assert found.settings_type is ServiceSettings
    assert found.factory(ServiceSettings()).title == "plain"


@pytest.mark.parametrize(
    ("attribute", "settings_type", "kind"),
    [
        ("create_late", EchoSettings, None),
        ("create_agent", AgentSettings, "agent"),
        ("create_untyped", ServiceSettings, None),
        ("Factories.create_echo", EchoSettings, None),
        ("Echo", EchoSettings, "model"),
        ("Always", ServiceSettings, "resources"),
        ("Once", AgentSettings, "agent"),
    ],
)
def test_the_settings_class_and_kind_are_read_from_the_attribute(
    attribute: str, settings_type: type[ServiceSettings], kind: str | None
) -> None:
    found = find_service(f"{HERE}:{attribute}")

    assert found.settings_type is settings_type
    assert found.kind == kind


@pytest.mark.parametrize(
    ("attribute", "settings", "wrapper"),
    [
        ("Echo", EchoSettings(times=2), "model_app"),
        ("Always", ServiceSettings(), "resources_app"),
        ("Once", AgentSettings(model="m", resources="r"), "agent_app"),
    ],
)
def test_a_class_is_built_with_its_settings_and_wrapped_into_an_app(
    monkeypatch: pytest.MonkeyPatch, attribute: str, settings: ServiceSettings, wrapper: str
) -> None:
    served = []

    def wrap(service: Model | Resources | Agent) -> FastAPI:
        served.append(service)
        return FastAPI()

    monkeypatch.setattr(f"rollmill.server.{wrapper}", wrap, raising=False)

    app = find_service(f"{HERE}:{attribute}").factory(settings)

    assert isinstance(app, FastAPI)
    assert type(served[0]).__name__ == attribute
    assert served[0].settings is settings


def test_a_class_without_settings_reads_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Model] = []

    def wrap(model: Model) -> FastAPI:
        served.append(model)
        return FastAPI()

    monkeypatch.setattr("rollmill.server.model_app", wrap, raising=False)
    monkeypatch.setenv("ROLLMILL_TIMES", "7")

    find_service(f"{HERE}:Echo").factory(None)

    assert served[0].settings == EchoSettings(times=7)


def test_a_class_refuses_the_settings_of_another() -> None:
    with pytest.raises(ConfigError, match="the service needs EchoSettings, not ServiceSettings"):
        find_service(f"{HERE}:Echo").factory(ServiceSettings())


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (f"{HERE}:create_ecko", f"service '{HERE}:create_ecko': '{HERE}' has no attribute 'create_ecko'; did you mean 'create_echo'?"),
        (f"{HERE}:Factories.zzzzzzz", f"service '{HERE}:Factories.zzzzzzz': '{HERE}' has no attribute 'Factories.zzzzzzz'"),
        (f"{HERE}:number", f"'{HERE}:number' is not a service: need a function create_app(settings), or a subclass of Resources, Agent or Model"),
        (f"{HERE}:needs_more", f"'{HERE}:needs_more' is not a service: need a function create_app(settings), or a subclass of Resources, Agent or Model"),
        (f"{HERE}:Factories", f"'{HERE}:Factories' is not a service: need a function create_app(settings), or a subclass of Resources, Agent or Model"),
        (f"{HERE}:Half", f"service '{HERE}:Half': the class lacks verify"),
        (f"{HERE}:create_mistyped", f"service '{HERE}:create_mistyped': the type of `settings` must be a subclass of ServiceSettings"),
        (f"{HERE}:create_unresolved", f"service '{HERE}:create_unresolved': the type of `settings` is unknown at run time: name 'OnlyForTypeCheckers' is not defined"),
        ("envs/my_env.py:create_app", "'envs/my_env.py:create_app' is not `module:attribute`; write it like 'my_package.weather:create_app'"),
        (".relative:create_app", "'.relative:create_app' is not `module:attribute`; write it like 'my_package.weather:create_app'"),
        (":create_app", "':create_app' is not `module:attribute`; write it like 'my_package.weather:create_app'"),
        ("rollmill:", "'rollmill:' is not `module:attribute`; write it like 'my_package.weather:create_app'"),
        ("no_such_module_:x", "cannot import 'no_such_module_' for service 'no_such_module_:x': No module named 'no_such_module_'; install its package, or run from the folder that holds it"),
        ("rollmill.no_such:x", "cannot import 'rollmill.no_such' for service 'rollmill.no_such:x': No module named 'rollmill.no_such'; install its package, or run from the folder that holds it"),
    ],
)  # fmt: skip
def test_what_is_not_a_service_is_told_with_the_fix(use: str, problem: str) -> None:
    assert problem_of(use) == problem


def test_the_installed_services_are_listed(packages: Path) -> None:
    install(packages, "demo", demo_weather="demo_weather:create_app", demo_other="nowhere:create_app")

    known = known_services()

    assert known["demo_weather"] == "demo_weather:create_app"
    assert known["demo_other"] == "nowhere:create_app"
    assert known["weather"] == "rollmill_services.resources.weather.app:create_app"
    assert list(known) == sorted(known)


def test_an_installed_service_is_found_without_importing_the_others(packages: Path) -> None:
    install(packages, "demo", demo_weather="demo_weather:create_app", demo_broken="demo_broken:create_app")
    (packages / "demo_weather.py").write_text(SERVICE)
    (packages / "demo_broken.py").write_text("raise RuntimeError('must not be imported')")

    found = find_service("demo_weather")

    assert found.use == "demo_weather"
    assert found.settings_type is ServiceSettings
    assert "demo_broken" not in sys.modules


def test_an_unknown_service_is_told_with_the_nearest_and_all_known(packages: Path) -> None:
    install(packages, "demo", demo_weather="demo_weather:create_app")

    problem = problem_of("demo_wether")

    assert problem.startswith("unknown service 'demo_wether'; did you mean 'demo_weather'? known: ")
    known = problem.partition("known: ")[2].split(", ")
    assert known == sorted(known)
    assert {"demo_weather", "head", "weather"} <= set(known)
    assert problem_of("zzzzzzzz").startswith("unknown service 'zzzzzzzz'; known: ")


def test_a_name_that_two_packages_give_to_different_services_is_refused(packages: Path) -> None:
    install(packages, "demo", demo_twice="demo_a:create_app")
    install(packages, "memo", demo_twice="demo_b:create_app")

    assert problem_of("demo_twice") == (
        "'demo_twice' is the name of several services; write one of demo_a:create_app, demo_b:create_app instead"
    )


def test_a_service_that_is_installed_twice_is_one_service(packages: Path) -> None:
    (packages / "demo_weather.py").write_text(SERVICE)
    install(packages, "demo", demo_twice="demo_weather:create_app")
    install(packages, "memo", demo_twice="demo_weather:create_app")

    assert find_service("demo_twice").settings_type is ServiceSettings


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import no_such_dependency_", "No module named 'no_such_dependency_'; install the package that provides 'no_such_dependency_'"),
        ("raise RuntimeError('boom')", "RuntimeError: boom; fix the module, python -c 'import demo_broken' shows where it breaks"),
        ("raise SystemExit(3)", "SystemExit: 3; fix the module, python -c 'import demo_broken' shows where it breaks"),
    ],
)  # fmt: skip
def test_a_module_that_breaks_is_told_with_the_fix(packages: Path, text: str, problem: str) -> None:
    (packages / "demo_broken.py").write_text(text)

    assert problem_of("demo_broken:create_app") == (
        f"cannot import 'demo_broken' for service 'demo_broken:create_app': {problem}"
    )


def test_a_module_of_the_working_directory_is_found(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo_env.py").write_text(SERVICE)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)

    assert find_service("demo_env:create_app").settings_type is ServiceSettings
    assert sys.path == path


def test_the_python_path_is_restored_when_the_module_breaks(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo_env.py").write_text("import sys\nsys.path.clear()\nraise RuntimeError('boom')")
    (tmp_path / "demo_env2.py").write_text("raise RuntimeError('boom')")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)

    assert "RuntimeError: boom" in problem_of("demo_env2:create_app")
    assert sys.path == path
    monkeypatch.setattr(sys, "path", list(path))
    assert "RuntimeError: boom" in problem_of("demo_env:create_app")


def test_an_installed_module_wins_over_the_working_directory(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "demo_env.py").write_text(SERVICE)
    (tmp_path / "demo_env.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(tmp_path)

    assert find_service("demo_env:create_app").settings_type is ServiceSettings


def test_an_installed_service_is_not_looked_for_in_the_working_directory(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(packages, "demo", demo_weather="demo_gone:create_app")
    (tmp_path / "demo_gone.py").write_text(SERVICE)
    monkeypatch.chdir(tmp_path)

    assert problem_of("demo_weather") == (
        "cannot import 'demo_gone' for service 'demo_weather': No module named 'demo_gone'; install its package again"
    )
