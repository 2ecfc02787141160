from typing import Literal, TypeAlias

from pydantic import Field

from rollmill.contracts.json import JsonObject
from rollmill.contracts.wire import WireModel

Kind: TypeAlias = Literal["head", "collector", "profiler", "agent", "resources", "model"]
State: TypeAlias = Literal["ready", "draining"]
ReverifyMode: TypeAlias = Literal["stateless", "unsupported", "unknown"]

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


class Registration(WireModel):
    """What a service tells the head when it starts. It never holds settings or secrets."""

    name: str = Field(pattern=NAME_PATTERN)
    kind: Kind
    url: str = Field(pattern=r"^https?://[^/\s]+(/[^\s]*)?$", max_length=2048)
    """Base URL at which other services reach this instance."""
    version: str = Field(max_length=100)
    capabilities: JsonObject = Field(default_factory=dict)
    """What callers must know: the declared tools of a resources server, the resources that an agent uses."""


class Lease(WireModel):
    """The head's answer to a registration or heartbeat."""

    instance: str
    lease_seconds: float
    """The registration is dropped when no heartbeat arrives for this long."""


class Heartbeat(WireModel):
    """Sent by a service several times per lease."""

    in_flight: int = Field(default=0, ge=0)
    capacity: int | None = Field(default=None, ge=1)
    state: State = "ready"


class Instance(WireModel):
    """One live replica of a service, as discovery returns it."""

    name: str
    instance: str
    kind: Kind
    url: str
    version: str = ""
    capabilities: JsonObject = Field(default_factory=dict)
    in_flight: int = 0
    capacity: int | None = None
    state: State = "ready"
    lease_age_seconds: float = 0.0
    """Seconds since the last heartbeat."""


class ScrapeTarget(WireModel):
    """Where Prometheus finds one instance; an element of what its HTTP service discovery expects."""

    targets: list[str]
    """One `host:port`."""
    labels: dict[str, str]


class ServiceList(WireModel):
    """Answer of `GET /v1/services`."""

    services: list[Instance]
