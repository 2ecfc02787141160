import asyncio
import time
from collections.abc import Callable
from typing import Final

from rollmill.client.transport import Transport
from rollmill.contracts.services import Instance
from rollmill.errors import RollmillError

PROBE_SECONDS: Final = 1.0
"""Longest wait for an answer."""
_AT_ONCE: Final = 16


class Probes:
    """Measures how long live replicas take to answer.

    Args:
        transport: carries the calls.
        clock: monotonic seconds.
    """

    def __init__(self, transport: Transport, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transport = transport
        self._clock = clock
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def latencies(self, instances: list[Instance]) -> dict[str, float | None]:
        """Call `GET /livez` of each instance.

        Returns:
            Milliseconds by instance id; None for one that does not answer with 200 within a second.
        """
        async with asyncio.TaskGroup() as group:
            tasks = {found.instance: group.create_task(self._latency(found)) for found in instances}
        return {instance: task.result() for instance, task in tasks.items()}

    async def _latency(self, instance: Instance) -> float | None:
        async with self._free:
            begun = self._clock()
            url = instance.url.rstrip("/") + "/livez"
            try:
                reply = await self._transport.send("GET", url, headers={}, timeout=PROBE_SECONDS)
            except RollmillError:
                return None
            return round((self._clock() - begun) * 1000, 3) if reply.ok else None
