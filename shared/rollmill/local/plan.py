"""From a topology to the processes that serve it: who runs, where it listens, what it alone is told."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rollmill.config.specs import ServiceSpec, Topology
from rollmill.config.topology import startup_order, topology_digest
from rollmill.contracts.json import JsonObject
from rollmill.contracts.services import Kind
from rollmill.local.connection import TlsFiles
from rollmill.local.ports import COLLECTOR_PORT, HEAD_PORT, PROFILER_PORT

OWN_SERVICES: Final[Mapping[Kind, str]] = {"head": "head", "collector": "collector", "profiler": "profiler"}
"""Rollmill's own services by kind: what each is found by."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to start."""

    label: str
    """Name of the service, with `@` and the number of the replica when there are several."""
    name: str
    kind: Kind
    use: str
    port: int
    """0 lets the system choose."""
    settings: JsonObject = field(repr=False)
    """What this process is told; it holds secrets. URLs are added when it is known where everything listens."""

    @property
    def port_option(self) -> str:
        """The option of `up` that changes the port."""
        return f"--{self.kind}-port"


@dataclass(frozen=True, slots=True)
class Placement:
    """What the person who runs `up` chooses."""

    token: str = field(default="", repr=False)
    token_file: Path | None = None
    """Where the token is to be read instead."""
    tls: TlsFiles = field(default_factory=TlsFiles)
    data_dir: Path = Path("results")
    """Directory of the runs."""
    head_port: int = HEAD_PORT
    collector_port: int = COLLECTOR_PORT
    profiler_port: int = PROFILER_PORT
    log_level: str = "INFO"


def plan_processes(
    topology: Topology, placement: Placement, *, own: Mapping[Kind, str] = OWN_SERVICES
) -> list[ProcessPlan]:
    """Plan every process of a deployment, in the order of starting.

    Args:
        topology: a checked topology.
        placement: ports, directories and the token.
        own: Rollmill's own services by kind.
    """
    access = _access(placement)
    common = access | {"log_level": placement.log_level}
    data = common | {"data_dir": str(placement.data_dir.absolute())}
    extra: dict[Kind, tuple[int, JsonObject]] = {
        "head": (placement.head_port, common),
        "collector": (placement.collector_port, data | {"topology_digest": topology_digest(topology)}),
        "profiler": (placement.profiler_port, data),
    }
    plans = [
        ProcessPlan(kind, kind, kind, own[kind], port, settings | {"name": kind})
        for kind, (port, settings) in extra.items()
        if kind in own
    ]
    for name in startup_order(topology):
        plans += _replicas(name, topology.services[name], access, placement.log_level)
    return plans


def _access(placement: Placement) -> JsonObject:
    """What decides who may call whom; it is the same for all, whatever the topology says."""
    file = placement.token_file
    return {
        "token": None if file else placement.token,
        "token_file": str(file) if file else None,
        **placement.tls.settings(),
    }


def _replicas(name: str, spec: ServiceSpec, access: JsonObject, log_level: str) -> list[ProcessPlan]:
    # One secret for all replicas of a service, which nobody else knows: only they read each other's session ids.
    session = {"session_secret": secrets.token_hex(32)}
    settings = session | {"log_level": log_level} | spec.settings | access | {"name": name}
    labels = [name] if spec.replicas == 1 else [f"{name}@{number}" for number in range(1, spec.replicas + 1)]
    return [ProcessPlan(label, name, spec.kind, spec.use, 0, settings) for label in labels]
