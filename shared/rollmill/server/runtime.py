from collections.abc import Callable
from dataclasses import dataclass, field

from rollmill._version import __version__
from rollmill.client.service_client import ServiceClient
from rollmill.config.secret_values import long_enough, secret_values
from rollmill.config.settings import ServiceSettings
from rollmill.config.tokens import Tokens, service_tokens
from rollmill.contracts.json import JsonObject
from rollmill.contracts.services import Kind
from rollmill.observability.meters import Meter
from rollmill.observability.tracing import NO_TRACER, Tracer


@dataclass(slots=True)
class Runtime:
    """What a running application shares between its lifespan and its routes."""

    settings: ServiceSettings
    kind: Kind
    capabilities: JsonObject = field(default_factory=dict)
    not_ready: str = "starting"
    """Why the service cannot serve; empty when it can."""
    on_drain: list[Callable[[], None]] = field(default_factory=list)
    """Called once when the process is asked to stop, before connections are closed."""
    connected: ServiceClient | None = None
    meters: list[Meter] = field(default_factory=list)
    """What the service tells at `/metrics` besides what every service tells."""
    tracer: Tracer = NO_TRACER
    """Whoever starts the application may replace it before the lifespan."""
    tokens: Tokens = field(init=False)
    """What callers must show, and what this service shows to others."""

    _secrets: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tokens = service_tokens(self.settings)
        self._secrets = secret_values(self.settings)

    def hidden(self) -> tuple[str, ...]:
        """Return what no answer may show: the secrets of the settings, and the tokens as they are now."""
        return (*self._secrets, *long_enough(self.tokens.known))

    @property
    def client(self) -> ServiceClient:
        """The way to other services; only there between start and stop."""
        if self.connected is None:
            raise RuntimeError("the application is not started: enter its lifespan first")
        return self.connected

    def drain(self) -> None:
        """Stop looking ready, and tell whoever asked to be told."""
        self.not_ready = "draining"
        for tell in self.on_drain:
            tell()

    def description(self) -> JsonObject:
        """Return the body of `GET /version`."""
        return {
            "name": self.settings.name,
            "kind": self.kind,
            "version": __version__,
            "capabilities": self.capabilities,
        }
