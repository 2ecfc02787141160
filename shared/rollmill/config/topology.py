"""The topology file: which services there are, what each is told, and what there is to collect.

It is checked as a whole before anything starts, so that one error lists everything that is wrong.
"""

import hashlib
import os
from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

from rollmill.config.checks import Service, absolute_path, content_faults, loop_faults, service_edges
from rollmill.config.faults import Fault, config_error, did_you_mean, dotted, model_faults
from rollmill.config.loading import find_service
from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import ValuePath, incidental_paths, with_absolute_files
from rollmill.config.specs import DatasetSpec, ServiceSpec, Topology, TopologyKind
from rollmill.config.yaml_source import YamlDocument, read_yaml
from rollmill.contracts.json import JsonObject, JsonValue, canonical

__all__ = [
    "DatasetSpec",
    "ServiceSpec",
    "Topology",
    "grading_services",
    "load_topology",
    "parse_topology",
    "service_settings",
    "service_values",
    "startup_order",
    "topology_digest",
]


def load_topology(path: Path, environ: Mapping[str, str] | None = None) -> Topology:
    """Load and check a topology file.

    Args:
        path: the YAML file; paths inside it are relative to its folder.
        environ: variables for `${VAR}` and `${VAR:-default}`; those of the process when None.

    Raises:
        ConfigError: lists every problem once, with its YAML path; no secret and no environment value is in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise config_error([Fault("", f"cannot be read: {error.strerror}")], path) from None
    except UnicodeDecodeError as error:
        raise config_error([Fault("", f"is not UTF-8 text: {error.reason} at byte {error.start}")], path) from None
    return parse_topology(text, source=path, base_dir=path.parent, environ=environ)


def parse_topology(
    text: str, *, base_dir: Path, source: Path | None = None, environ: Mapping[str, str] | None = None
) -> Topology:
    """Check a topology given as text; see `load_topology`.

    Args:
        text: the YAML text.
        base_dir: folder that paths inside it are relative to.
        source: the file it came from, for error messages.
        environ: variables for placeholders; those of the process when None.
    """
    document = read_yaml(text, os.environ if environ is None else environ)
    if faults := [*document.faults, *_untold_faults(document, base_dir)]:
        raise config_error(faults, source)
    datasets = [{**raw, "path": absolute_path(base_dir, raw["path"])} for raw in document.value.get("datasets", [])]
    return Topology.model_validate({**document.value, "datasets": datasets, "source": source})


def service_values(topology: Topology, name: str) -> JsonObject:
    """Return the settings of one service as plain values: its name filled in, its files absolute. Holds secrets.

    Raises:
        ConfigError: there is no such service, or its settings are wrong.
    """
    spec = topology.services.get(name)
    if spec is None:
        hint = did_you_mean(name, topology.services)
        raise config_error([Fault("services", f"no service is called {name!r}{hint}")], topology.source)
    settings_type = find_service(spec.use).settings_type
    values = {**spec.settings, "name": name}
    if faults := list(model_faults(settings_type, values, "services", name, "settings", what="setting")):
        raise config_error(faults, topology.source)
    folder = topology.source.absolute().parent if topology.source else Path.cwd()
    return with_absolute_files(settings_type, values, folder)


def service_settings(topology: Topology, name: str) -> ServiceSettings:
    """Return the settings of one service as its own settings class; errors as in `service_values`."""
    values = service_values(topology, name)
    return find_service(topology.services[name].use).settings_type.model_validate(values)


def startup_order(topology: Topology) -> list[str]:
    """Order the services such that each comes after the services that its settings name; else models come first.

    Raises:
        ConfigError: the services need each other in a loop, or one cannot be found.
    """
    services = _services(topology)
    if loops := list(loop_faults(services)):
        raise config_error(loops, topology.source)
    edges = service_edges(services)
    by_kind = sorted(services, key=lambda name: get_args(TopologyKind).index(services[name].kind))
    return list(TopologicalSorter({name: edges[name] for name in by_kind}).static_order())


def grading_services(topology: Topology, only: str = "") -> list[str]:
    """Name, in startup order, the services that stored rollouts are graded with: no model, unless a verifier asks it.

    Args:
        topology: what there is.
        only: one resources service; then it and those that it asks, and no agents.

    Raises:
        ConfigError: as `startup_order`.
    """
    services = _services(topology)
    edges = service_edges(services)
    needed: set[str] = set()
    waiting = [only] if only else [name for name, service in services.items() if service.kind == "resources"]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(edges[name])
    agents = {name for name, service in services.items() if service.kind == "agent" and not only}
    return [name for name in startup_order(topology) if name in needed | agents]


def _services(topology: Topology) -> dict[str, Service]:
    specs = topology.services.items()
    return {name: Service(spec.kind, find_service(spec.use), spec.settings) for name, spec in specs}


def topology_digest(topology: Topology) -> str:
    """Return a SHA-256, in hexadecimal, of which services there are and how each is set.

    Two topologies with the same digest give rollouts of the same kind. Secret and incidental settings (such as the
    address of an engine), replicas and datasets do not count, nor does the order of keys.
    """
    content: JsonObject = {}
    for name, spec in topology.services.items():
        left_out = incidental_paths(find_service(spec.use).settings_type, spec.settings)
        content[name] = {"kind": spec.kind, "use": spec.use, "settings": _public(spec.settings, (), left_out)}
    return hashlib.sha256(canonical(content)).hexdigest()


def _public(value: JsonValue, path: ValuePath, left_out: set[ValuePath]) -> JsonValue:
    if isinstance(value, dict):
        return {
            key: _public(item, (*path, key), left_out) for key, item in value.items() if (*path, key) not in left_out
        }
    if isinstance(value, list):
        return [_public(item, (*path, index), left_out) for index, item in enumerate(value)]
    return value


def _untold_faults(document: YamlDocument, base_dir: Path) -> list[Fault]:
    """Find what is wrong with the content, except where nothing could be read in the first place."""
    if document.faults and document.value is None:
        return []
    told = [dotted(*path) for path in document.unreadable]
    faults = content_faults(document.value, base_dir)
    return [fault for fault in faults if not any(f"{fault.pointer}.".startswith(f"{place}.") for place in told)]
