from collections.abc import Iterator

from rollmill.artifacts.compact import CompactInts
from rollmill.contracts.rows import RowKey

_BITS = 1024
"""Rollout indices below this are bits of one integer per task; a stray huge index costs no more than a set entry."""


class KeySet:
    """A set of rollout keys that stays small: 8 bytes for a task and its first 64 rollouts, if tasks come in order."""

    __slots__ = ("_count", "_far", "_masks")

    def __init__(self) -> None:
        self._masks = CompactInts()
        self._far: set[RowKey] = set()
        self._count = 0

    def add(self, key: RowKey) -> bool:
        """Add a key; return whether it was new."""
        if key in self:
            return False
        if key.rollout < _BITS:
            self._masks[key.task] |= 1 << key.rollout
        else:
            self._far.add(key)
        self._count += 1
        return True

    def __contains__(self, key: RowKey) -> bool:
        if key.rollout < _BITS:
            return bool(self._masks[key.task] >> key.rollout & 1)
        return key in self._far

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RowKey]:
        for task, mask in self._masks.items():
            yield from (RowKey(task, rollout) for rollout in range(mask.bit_length()) if mask >> rollout & 1)
        yield from self._far
