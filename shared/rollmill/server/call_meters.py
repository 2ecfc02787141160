import asyncio
import resource
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rollmill._version import __version__
from rollmill.client.service_client import ServiceClient
from rollmill.contracts.json import JsonValue
from rollmill.observability.meters import OTHER, Counter, Gauge, Histogram, Meter, Numbers, exposition
from rollmill.server.runtime import Runtime

LAG_EVERY_SECONDS: Final = 0.5
CLIENT_LEFT: Final = 499
"""Status of a call whose client left before there was an answer, as proxies write it."""
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class CallMeters:
    """What a service knows about the calls to it, and about its process."""

    def __init__(self, runtime: Runtime, in_flight: Callable[[], int]) -> None:
        self._runtime = runtime
        labels = ("method", "route", "status")
        self.seconds = Histogram("rollmill_request_seconds", "Calls, and the time until each was answered.", *labels)
        self.lag = Histogram("rollmill_event_loop_lag_seconds", "How much later than due the event loop came round.")
        self._own: list[Meter] = [self.seconds, self.lag, *_gauges(runtime, in_flight), _Process()]

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a call.

        Args:
            method: of the call.
            route: path of a hot route, or the template of another; never the path that was asked for.
            status: of the answer; 0 when there was none.
            seconds: from its arrival to the end of its answer.
        """
        self.seconds.observe(seconds, method, route, str(status or CLIENT_LEFT))

    async def watch_loop(self) -> None:
        """Measure how late the event loop is, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self.lag.observe(max(0.0, clock() - due))

    def text(self) -> str:
        """Return the numbers of this moment in the text format."""
        connected = self._runtime.connected
        retries: list[Meter] = [connected.retries] if isinstance(connected, ServiceClient) else []
        return exposition([*self._own, *retries, *self._runtime.meters])


def routed(scope: MutableMapping[str, JsonValue]) -> tuple[str, str]:
    """Return method and route template of a call that FastAPI answered, from a set that no client can enlarge."""
    route = getattr(scope.get("route"), "path", OTHER)
    method = scope["method"]
    return (method if method in _METHODS else OTHER), route


def _gauges(runtime: Runtime, in_flight: Callable[[], int]) -> Iterator[Gauge]:
    settings = runtime.settings
    about: Numbers = {(settings.name, runtime.kind, __version__): 1}
    yield Gauge("rollmill_service_info", "Always 1.", "name", "kind", "version", read=lambda: about)
    yield Gauge("rollmill_ready", "1 when the service can serve.", read=lambda: {(): float(not runtime.not_ready)})
    yield Gauge("rollmill_requests_in_flight", "Calls at work now.", read=lambda: {(): in_flight()})
    limit: Numbers = {(): settings.max_in_flight}
    yield Gauge("rollmill_requests_in_flight_limit", "More calls at once are refused.", read=lambda: limit)


class _Process:
    """CPU time and memory of the process, under the names that Prometheus' own clients use."""

    def lines(self) -> Iterator[str]:
        """See `Meter.lines`."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = Counter("process_cpu_seconds_total", "CPU time used.")
        cpu.add(amount=used.ru_utime + used.ru_stime)
        yield from cpu.lines()
        with suppress(OSError):  # only Linux tells the memory of now
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            memory: Numbers = {(): pages * resource.getpagesize()}
            yield from Gauge("process_resident_memory_bytes", "Memory in use.", read=lambda: memory).lines()
