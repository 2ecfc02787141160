"""What is wrong with the content of a topology: every part is checked, however wrong the others are."""

import functools
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, get_args

from pydantic import Field

from rollmill.config.faults import Expanded, Fault, did_you_mean, dotted, model_faults
from rollmill.config.loading import ServiceDefinition, find_service
from rollmill.config.settings_refs import Reference, ValuePath, references
from rollmill.config.specs import DatasetSpec, ServiceSpec, Strict, TopologyKind
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.services import NAME_PATTERN
from rollmill.errors import ConfigError

RESERVED_NAMES: Final = frozenset({"head", "collector", "profiler"})
"""Rollmill's own services register under these names."""


class _TopologyFile(Strict):
    services: JsonObject
    datasets: list[JsonValue] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Service:
    """A service as far as it could be understood, so that the rest can still be checked."""

    kind: JsonValue
    definition: ServiceDefinition | None
    settings: JsonObject

    def references(self) -> list[Reference]:
        """List the services that its settings name."""
        return references(self.definition.settings_type, self.settings) if self.definition else []


def content_faults(raw: JsonValue, base_dir: Path) -> Iterator[Fault]:
    """Yield every problem of a topology that was read from a file in this folder."""
    if not isinstance(raw, dict):
        yield Fault("", "must be a mapping with `services` in it")
        return
    yield from model_faults(_TopologyFile, raw)
    entries, datasets = raw.get("services"), raw.get("datasets")
    # One service may be used under many names: look for it once.
    find = functools.cache(find_service)
    services: dict[str, Service] = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        yield from _name_faults(name)
        yield from model_faults(ServiceSpec, entry, "services", name)
        services[name] = yield from _understand(name, entry if isinstance(entry, dict) else {}, find)
    for name, service in services.items():
        yield from _reference_faults(name, service, services)
    yield from loop_faults(services)
    for index, dataset in enumerate(datasets if isinstance(datasets, list) else ()):
        yield from model_faults(DatasetSpec, dataset, "datasets", index)
        yield from _dataset_faults(index, dataset if isinstance(dataset, dict) else {}, services, base_dir)


def absolute_path(base_dir: Path, path: str) -> Path:
    """Resolve a path of the file against the folder of the file."""
    return Path(os.path.abspath(base_dir / path))


def _name_faults(name: str) -> Iterator[Fault]:
    if name in RESERVED_NAMES:
        yield Fault(dotted("services", name), "the name is reserved for Rollmill's own service")
    if not re.fullmatch(NAME_PATTERN, name):
        rule = "1 to 100 letters, digits, '.', '_' and '-', with a letter or digit first"
        yield Fault(dotted("services", name), f"not a name; a name has {rule}")


def _understand(
    name: str, entry: JsonObject, find: Callable[[str], ServiceDefinition]
) -> Generator[Fault, None, Service]:
    """Look up what a service uses, check its settings, and return what is known of it."""
    kind, use, settings = entry.get("kind"), entry.get("use"), entry.get("settings", {})
    settings = settings if isinstance(settings, dict) else {}
    if not isinstance(use, str) or not use:
        return Service(kind, None, settings)
    try:
        definition = find(use)
    except ConfigError as error:
        hidden = isinstance(use, Expanded)
        yield Fault(dotted("services", name, "use"), f"{use!r} names no usable service" if hidden else error.detail)
        return Service(kind, None, settings)
    if definition.kind not in (None, kind) and kind in get_args(TopologyKind):
        yield Fault(dotted("services", name, "kind"), f"{use!r} is of kind {definition.kind!r}, not {kind!r}")
    if settings.get("name", name) != name:
        yield Fault(dotted("services", name, "settings.name"), "a service is called by its key under `services`")
    values = {key: value for key, value in settings.items() if key != "name"}
    yield from model_faults(definition.settings_type, values, "services", name, "settings", what="setting")
    # What the service itself says wins, so that a wrong `kind` is not told again wherever the service is named.
    return Service(definition.kind or kind, definition, settings)


def _reference_faults(name: str, service: Service, services: Mapping[str, Service]) -> Iterator[Fault]:
    for reference in service.references():
        problem = _target_problem(reference.name, reference.kind, services)
        if problem:
            yield Fault(dotted("services", name, "settings", *reference.path), problem)


def _target_problem(name: str, kind: str | None, services: Mapping[str, Service]) -> str:
    """Say why a service cannot be used where this kind is needed; empty when it can."""
    target = services.get(name)
    if target is None:
        fitting = [other for other, service in services.items() if kind in (None, service.kind)]
        return f"no service is called {name!r}{did_you_mean(name, fitting)}"
    if kind in (None, target.kind) or target.kind not in get_args(TopologyKind):
        return ""
    return f"{name!r} is of kind {target.kind!r}, not {kind!r}"


def service_edges(services: Mapping[str, Service]) -> dict[str, dict[str, ValuePath]]:
    """Map each service to the services that it names, and where it names them."""
    return {
        name: {
            reference.name: reference.path
            for reference in service.references()
            if not _target_problem(reference.name, reference.kind, services)
        }
        for name, service in services.items()
    }


def loop_faults(services: Mapping[str, Service]) -> Iterator[Fault]:
    """Yield the loops in which services need each other."""
    edges = service_edges(services)
    order = {name: position for position, name in enumerate(services)}
    while loop := _find_loop(edges):
        start = loop.index(min(loop, key=order.__getitem__))
        loop = [*loop[start:], *loop[:start]]
        first, last, following = loop[0], loop[-1], loop[1 % len(loop)]
        pointer = dotted("services", first, "settings", *edges[first][following])
        yield Fault(pointer, f"services need each other in a loop: {' -> '.join([*loop, first])}")
        del edges[last][first]


def _find_loop(edges: Mapping[str, Mapping[str, ValuePath]]) -> list[str]:
    """Return services of which each names the next and the last names the first; empty when there are none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        # The sorter lists each service before the one that names it, and the first again at the end.
        cycle: list[str] = error.args[1]
        return cycle[:0:-1]
    return []


def _dataset_faults(
    index: int, dataset: JsonObject, services: Mapping[str, Service], base_dir: Path
) -> Iterator[Fault]:
    agent, path = dataset.get("agent"), dataset.get("path")
    if isinstance(agent, str) and agent and (problem := _target_problem(agent, "agent", services)):
        yield Fault(dotted("datasets", index, "agent"), problem)
    if isinstance(path, str) and not os.path.isfile(file := absolute_path(base_dir, path)):
        shown = repr(path) if isinstance(path, Expanded) else repr(str(file))
        yield Fault(
            dotted("datasets", index, "path"), f"{'not a' if os.path.exists(file) else 'no such'} file: {shown}"
        )
