import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from rollmill.client.addresses import may_be_service
from rollmill.contracts.services import Heartbeat, Instance, Kind, Lease, Registration
from rollmill.errors import ConflictError, InputError, NotFoundError, OverloadedError, ServiceNotFoundError
from rollmill.ids import new_id
from rollmill.observability.meters import Counter as CountMeter
from rollmill.observability.meters import Gauge, Labels, Meter, Numbers


@dataclass(slots=True)
class _Entry:
    registration: Registration
    instance: str
    renewed: float
    beat: Heartbeat


class Registry:
    """The live services. Soft state: whatever is forgotten registers again within one heartbeat.

    Args:
        lease_seconds: how long an entry lives without a heartbeat.
        allowed_hosts: where services may be besides local places; see `may_be_service`.
        max_instances: most entries.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        lease_seconds: float,
        allowed_hosts: Collection[str] = (),
        max_instances: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lease_seconds = lease_seconds
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._max_instances = max_instances
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._registrations = CountMeter("rollmill_registrations_total", "Registrations taken.")
        self._expirations = CountMeter("rollmill_leases_expired_total", "Leases that ran out.")

    @property
    def meters(self) -> Sequence[Meter]:
        """What is told about the leases at `/metrics`."""
        return [
            self._registrations,
            self._expirations,
            Gauge("rollmill_leases", "Live instances.", "name", "kind", "state", read=self._leases),
            Gauge("rollmill_lease_age_seconds", "Longest time since a heartbeat.", "name", read=self._ages),
        ]

    def register(self, registration: Registration) -> Lease:
        """Add an instance. One that comes back on the same URL replaces its former self.

        Raises:
            ConflictError: the name is in use for another kind of service.
            InputError: its URL leads to where no service may be.
            OverloadedError: there are too many instances.
        """
        self._check_host(registration.url)
        self._expire()
        for entry in list(self._entries.values()):
            known = entry.registration
            if known.name == registration.name and known.kind != registration.kind:
                raise ConflictError(f"{known.name!r} is registered as {known.kind}, not as {registration.kind}")
            if known.name == registration.name and known.url == registration.url:
                del self._entries[entry.instance]
        if len(self._entries) >= self._max_instances:
            raise OverloadedError(f"{self._max_instances} instances are registered (setting max_instances)")
        instance = new_id()
        self._registrations.add()
        self._entries[instance] = _Entry(registration, instance, self._clock(), Heartbeat())
        return Lease(instance=instance, lease_seconds=self._lease_seconds)

    def renew(self, name: str, instance: str, beat: Heartbeat) -> Lease:
        """Take a heartbeat.

        Raises:
            NotFoundError: the lease has run out, or the head restarted: register again.
        """
        entry = self._find(name, instance)
        entry.beat = beat
        entry.renewed = self._clock()
        return Lease(instance=instance, lease_seconds=self._lease_seconds)

    def remove(self, name: str, instance: str) -> None:
        """Drop an instance; one that is already gone is no error."""
        entry = self._entries.get(instance)
        if entry is not None and entry.registration.name == name:
            del self._entries[instance]

    def services(self, kind: Kind | None = None) -> list[Instance]:
        """Return every live instance, by name and then in order of registration."""
        self._expire()
        entries = [e for e in self._entries.values() if kind is None or e.registration.kind == kind]
        return sorted(map(self._view, entries), key=lambda instance: instance.name)

    def service(self, name: str) -> list[Instance]:
        """Return the live instances of one service.

        Raises:
            ServiceNotFoundError: there is none.
        """
        found = [instance for instance in self.services() if instance.name == name]
        if not found:
            raise ServiceNotFoundError(f"{name!r} is not registered", service=name)
        return found

    def _find(self, name: str, instance: str) -> _Entry:
        self._expire()
        entry = self._entries.get(instance)
        if entry is None or entry.registration.name != name:
            raise NotFoundError(f"no lease {instance!r} of {name!r}: register again", service=name)
        return entry

    def _check_host(self, url: str) -> None:
        """Refuse what clients must not be sent to: they call it with the token."""
        host = _host(url)
        if not host:
            fault = "must be http(s)://host:port, without user, password and query"
        elif not may_be_service(host, self._allowed_hosts):
            fault = f"{host} is neither this machine nor a private host; the head's setting allowed_hosts can allow it"
        else:
            return
        raise InputError(f"/url: {fault}", errors=[{"pointer": "/url", "detail": fault}])

    def _expire(self) -> None:
        horizon = self._clock() - self._lease_seconds
        for entry in [e for e in self._entries.values() if e.renewed < horizon]:
            del self._entries[entry.instance]
            self._expirations.add()

    def _leases(self) -> Numbers:
        return Counter((one.name, one.kind, one.state) for one in self.services())

    def _ages(self) -> Numbers:
        ages: dict[Labels, float] = {}
        for one in self.services():
            ages[(one.name,)] = max(ages.get((one.name,), 0.0), one.lease_age_seconds)
        return ages

    def _view(self, entry: _Entry) -> Instance:
        registration, beat = entry.registration, entry.beat
        return Instance(
            name=registration.name,
            instance=entry.instance,
            kind=registration.kind,
            url=registration.url,
            version=registration.version,
            capabilities=registration.capabilities,
            in_flight=beat.in_flight,
            capacity=beat.capacity,
            state=beat.state,
            lease_age_seconds=round(self._clock() - entry.renewed, 3),
        )


def _host(url: str) -> str:
    """Return the host of a base URL; empty when it is none."""
    try:
        parts = urlsplit(url)
        usable = parts.port != 0 and "@" not in parts.netloc and not (parts.query or parts.fragment)
    except ValueError:  # no port, or no address between brackets
        return ""
    return (parts.hostname or "") if usable else ""
