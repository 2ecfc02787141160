from collections.abc import Sequence
from typing import Protocol

from rollmill_services.resources.reward_model.rendering import Rendered


class WorkerLostError(Exception):
    """A worker's device is of no use any more; its batch may be scored by another one."""


class Worker(Protocol):
    """Scores batches, one at a time: a device, or a connection to an engine."""

    name: str

    async def outputs(self, batch: Sequence[Rendered]) -> list[list[float]]:
        """Return the model's outputs for each conversation, in order.

        Raises:
            WorkerLostError: this worker cannot score any more.
            Exception: the batch failed; its conversations may succeed in smaller ones.
        """

    async def close(self) -> None:
        """Release the device or the connection."""
