"""Finding a service by what a topology says under `use`: an entry-point name, or `module:attribute`."""

import importlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from rollmill.config.faults import did_you_mean
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.services import Kind
from rollmill.errors import ConfigError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from rollmill.server.agent import Agent
    from rollmill.server.model import Model
    from rollmill.server.resources import Resources

GROUP: Final = "rollmill.services"

Settings = TypeVar("Settings", bound=ServiceSettings)
ServiceFactory: TypeAlias = "Callable[[ServiceSettings | None], FastAPI]"


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """A service that was found: how to make its app, and what it can be told."""

    use: str
    """As the topology names it."""
    factory: ServiceFactory
    """Makes the app from settings; with None the settings come from the environment of the process."""
    settings_type: type[ServiceSettings]
    kind: Kind | None
    """None when the service does not tell."""


def known_services() -> dict[str, str]:
    """List the installed services: entry-point name to `module:attribute`, sorted by name."""
    points = importlib.metadata.entry_points(group=GROUP)
    return dict(sorted((point.name, point.value) for point in points))


def find_service(use: str) -> ServiceDefinition:
    """Find a service and import its module, and no other service's.

    Args:
        use: an entry-point name of the group `rollmill.services`, or `module:attribute` where the attribute is a
            function `create_app(settings: X | None = None) -> FastAPI` or a subclass of `Resources`, `Agent` or
            `Model`. A module that is found nowhere else is looked for in the current working directory.

    Raises:
        ConfigError: there is no such service, it cannot be imported, or it is not a service; says the fix.
    """
    module_name, attribute = _split(use if ":" in use else _entry_point(use))
    found = _attribute(_import(module_name, use), attribute, use)
    if inspect.isclass(found):
        return _from_class(found, use)
    if callable(found):
        return _from_function(found, use)
    raise _not_a_service(use)


def service_folder(use: str) -> Path | None:
    """Return the folder of the module that a service comes from, once `find_service` has found it.

    Raises:
        ConfigError: there is no such service.
    """
    module_name, _ = _split(use if ":" in use else _entry_point(use))
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return Path(file).parent if file else None


def _entry_point(name: str) -> str:
    points = importlib.metadata.entry_points(group=GROUP)
    targets = sorted({f"{point.module}:{point.attr}" for point in points.select(name=name)})
    if not targets:
        hint = did_you_mean(name, points.names) or ";"
        known = ", ".join(sorted(points.names)) or "none is installed"
        raise ConfigError(f"unknown service {name!r}{hint} known: {known}")
    if len(targets) > 1:
        raise ConfigError(f"{name!r} is the name of several services; write one of {', '.join(targets)} instead")
    return targets[0]


def _split(target: str) -> tuple[str, str]:
    module_name, _, attribute = target.partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{target!r} is not `module:attribute`; write it like 'my_package.weather:create_app'")
    return module_name, attribute


def _import(name: str, use: str) -> ModuleType:
    try:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if ":" not in use or not _is_missing(name, error):
                raise
            with _working_directory_importable():
                return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a module may raise anything at all when it is imported
        raise ConfigError(f"cannot import {name!r} for service {use!r}: {_import_problem(name, use, error)}") from error


def _is_missing(name: str, error: ModuleNotFoundError) -> bool:
    """Say whether the module itself was not found, and not another one that it imports."""
    return f"{name}.".startswith(f"{error.name}.")


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _import_problem(name: str, use: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        if _is_missing(name, error):
            where = ", or run from the folder that holds it" if ":" in use else " again"
            return f"{error}; install its package{where}"
        return f"{error}; install the package that provides {error.name!r}"
    return f"{type(error).__name__}: {error}; fix the module, python -c 'import {name}' shows where it breaks"


def _attribute(module: ModuleType, attribute: str, use: str) -> object:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, [name for name in dir(found) if not name.startswith("_")])
            raise ConfigError(f"service {use!r}: {module.__name__!r} has no attribute {attribute!r}{hint}")
        found = getattr(found, part)
    return found


def _not_a_service(use: str) -> ConfigError:
    return ConfigError(
        f"{use!r} is not a service: need a function create_app(settings), or a subclass of Resources, Agent or Model"
    )


def _from_function(function: Callable[..., "FastAPI"], use: str) -> ServiceDefinition:
    # The server package builds on this one, so it is only imported when a service is looked for.
    from rollmill.server.agent import AgentSettings

    try:
        signature = inspect.signature(function)
        takes_settings = "settings" in signature.parameters
        signature.bind(**({"settings": None} if takes_settings else {}))
    except (TypeError, ValueError):
        raise _not_a_service(use) from None

    def create_app(settings: ServiceSettings | None = None) -> "FastAPI":
        return function(settings=settings) if takes_settings else function()

    settings_type = _settings_type(function, use) if takes_settings else ServiceSettings
    kind: Kind | None = "agent" if issubclass(settings_type, AgentSettings) else None
    return ServiceDefinition(use, create_app, settings_type, kind)


def _settings_type(function: Callable[..., "FastAPI"], use: str) -> type[ServiceSettings]:
    annotation = inspect.signature(function).parameters["settings"].annotation
    if annotation is inspect.Parameter.empty:
        return ServiceSettings
    # Only this parameter's type has to be resolvable: others may be imported for type checkers alone.
    settings_only = SimpleNamespace(__annotations__={"settings": annotation})
    try:
        hint = get_type_hints(settings_only, getattr(inspect.unwrap(function), "__globals__", {}))["settings"]
    except NameError as error:
        raise ConfigError(f"service {use!r}: the type of `settings` is unknown at run time: {error}") from None
    for candidate in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if inspect.isclass(candidate) and issubclass(candidate, ServiceSettings):
            return candidate
    raise ConfigError(f"service {use!r}: the type of `settings` must be a subclass of ServiceSettings")


def _from_class(found: type, use: str) -> ServiceDefinition:
    from rollmill.server.agent import Agent
    from rollmill.server.model import Model
    from rollmill.server.resources import Resources

    if not issubclass(found, Agent | Model | Resources):
        raise _not_a_service(use)
    if inspect.isabstract(found):
        raise ConfigError(f"service {use!r}: the class lacks {', '.join(sorted(found.__abstractmethods__))}")
    if issubclass(found, Agent):
        return ServiceDefinition(use, _agent_factory(found), found.Settings, "agent")
    if issubclass(found, Model):
        return ServiceDefinition(use, _model_factory(found), found.Settings, "model")
    return ServiceDefinition(use, _resources_factory(found), found.Settings, "resources")


def _agent_factory(agent: "type[Agent]") -> ServiceFactory:
    def create_app(settings: ServiceSettings | None = None) -> "FastAPI":
        from rollmill.server import agent_app

        return agent_app(agent(_own_settings(agent.Settings, settings)))

    return create_app


def _model_factory(model: "type[Model]") -> ServiceFactory:
    def create_app(settings: ServiceSettings | None = None) -> "FastAPI":
        from rollmill.server import model_app

        return model_app(model(_own_settings(model.Settings, settings)))

    return create_app


def _resources_factory(resources: "type[Resources]") -> ServiceFactory:
    def create_app(settings: ServiceSettings | None = None) -> "FastAPI":
        from rollmill.server import resources_app

        return resources_app(resources(_own_settings(resources.Settings, settings)))

    return create_app


def _own_settings(settings_type: type[Settings], given: ServiceSettings | None) -> Settings:
    if given is None:
        return settings_type.from_environment()
    if not isinstance(given, settings_type):
        raise ConfigError(f"the service needs {settings_type.__name__}, not {type(given).__name__}")
    return given
