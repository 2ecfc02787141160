from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rollmill.contracts.json import JsonValue

COLUMNS: Final = ("agent", "task", "rollout", "reward", "truncated", "seconds", "input", "output")
"""Columns of the table of rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """What a tracker gets of a run."""

    name: str
    """What the tracker knows the run by. What is exported again under the same name replaces what was there."""
    state: str
    """State in the manifest; empty without one."""
    step: int
    """Where its metrics are on the tracker's horizontal axis."""
    params: dict[str, str]
    metrics: dict[str, float]
    """By `{agent}/{metric}` and `key_metrics/{agent}/{metric}`; every value is finite."""
    rollouts: Sequence[Sequence[JsonValue]] = ()
    """Lines of the table of rollouts, as `COLUMNS` says; long texts lack their middle."""
    notes: tuple[str, ...] = ()
    """What a person should know about what was left out."""


class Exporter(Protocol):
    """Writes runs to one tracker."""

    def export(self, run: ExportedRun) -> str:
        """Write a run in place of what an earlier export of the same name and step wrote.

        Returns:
            Where it is now, for a person.

        Raises:
            Exception: whatever the tracker's library raises.
        """
