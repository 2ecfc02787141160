"""Mappings for a million entries: what a run must remember of every task, in a tenth of the memory of a dict."""

from array import array
from collections.abc import Iterator
from itertools import repeat

_LARGEST = 2**64 - 1
_GAP = 65_536
"""Keys may come this far ahead of those before them, as rollouts do that are finished out of order."""
_FIRST_SLOTS = 1024


class CompactInts:
    """Integers >= 0 by integers >= 0: 8 bytes each as long as the keys come about in order. Zero where none was put."""

    __slots__ = ("_far", "_near")

    def __init__(self) -> None:
        self._near = array("Q")
        self._far: dict[int, int] = {}

    def __getitem__(self, key: int) -> int:
        if key < len(self._near) and (value := self._near[key]):
            return value
        return self._far.get(key, 0)

    def __setitem__(self, key: int, value: int) -> None:
        ahead = key - len(self._near)
        if value > _LARGEST or ahead > _GAP:
            self._far[key] = value
            if ahead < 0:
                self._near[key] = 0
            return
        self._far.pop(key, None)
        if ahead >= 0:
            self._near.extend(repeat(0, ahead + 1))
        self._near[key] = value

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield what is not zero, in no particular order."""
        yield from ((key, value) for key, value in enumerate(self._near) if value)
        yield from ((key, value) for key, value in self._far.items() if value)


class DigestIndex:
    """Integers below 2^64 by digests of 8 bytes: an open-addressing table over two arrays, 24 to 32 bytes an entry.

    It holds at most 2^31 entries. The digests must be evenly spread, as those of a cryptographic hash are.
    """

    __slots__ = ("_digests", "_slots", "_values")

    def __init__(self) -> None:
        self._digests = array("Q")
        self._values = array("Q")
        self._slots = array("I", repeat(0, _FIRST_SLOTS))
        """Place in the two arrays, from 1; 0 is free. A power of two of them, at most half in use."""

    def __len__(self) -> int:
        return len(self._digests)

    def get(self, digest: int) -> int | None:
        """Return the integer of a digest, or None."""
        place = self._slots[self._slot(digest)]
        return self._values[place - 1] if place else None

    def add(self, digest: int, value: int) -> None:
        """Put a digest that is not there yet."""
        if 2 * len(self._digests) >= len(self._slots):
            self._grow()
        self._digests.append(digest)
        self._values.append(value)
        self._slots[self._slot(digest)] = len(self._digests)

    def _slot(self, digest: int) -> int:
        """Return the slot of a digest, or the free one where it belongs."""
        slots, digests = self._slots, self._digests
        mask = len(slots) - 1
        slot = digest & mask
        while (place := slots[slot]) and digests[place - 1] != digest:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        self._slots = array("I", repeat(0, 2 * len(self._slots)))
        for place, digest in enumerate(self._digests, start=1):
            self._slots[self._slot(digest)] = place
