from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from random import Random
from typing import TypeVar

from rollmill.contracts.json import JsonObject, canonical

_UNITS = 2**53
_CONCENTRATION = 3.0

Option = TypeVar("Option")


class Draws:
    """Random draws that can be repeated: each is a function of the key and of the draw's name.

    Args:
        parts: what the draws depend on.
    """

    def __init__(self, *parts: bytes | int) -> None:
        joined = b"\0".join(part if isinstance(part, bytes) else b"%d" % part for part in parts)
        self._key = blake2b(joined, digest_size=16).digest()

    def identity(self, name: str) -> str:
        """Draw an id of 96 bits in hexadecimal."""
        return self._digest(name).hex()[:24]

    def unit(self, name: str) -> float:
        """Draw evenly from [0, 1)."""
        return int.from_bytes(self._digest(name)[:8], "big") % _UNITS / _UNITS

    def whole(self, name: str, low: int, high: int) -> int:
        """Draw a whole number evenly from low to high, both included."""
        return low + int(self.unit(name) * (high - low + 1))

    def pick(self, name: str, options: Sequence[Option]) -> Option:
        """Draw one of the options, at least one."""
        return options[self.whole(name, 0, len(options) - 1)]

    def beta(self, name: str, mean: float) -> float:
        """Draw a probability from a Beta distribution with this mean; 0 and 1 stay what they are."""
        if mean in (0.0, 1.0):
            return mean
        generator = Random(self._digest(name))
        return generator.betavariate(mean * _CONCENTRATION, (1 - mean) * _CONCENTRATION)

    def _digest(self, name: str) -> bytes:
        return blake2b(name.encode(), key=self._key, digest_size=16).digest()


class RepeatCounter:
    """Counts how often keys were seen, within bounded memory.

    Args:
        limit: most keys remembered; the one not seen for longest is forgotten first.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._limit = limit

    def __len__(self) -> int:
        return len(self._counts)

    def seen_before(self, key: bytes) -> int:
        """Return how often the key was seen before, and count this time."""
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        self._counts.move_to_end(key)
        if len(self._counts) > self._limit:
            self._counts.popitem(last=False)
        return count


def input_digest(items: list[JsonObject]) -> bytes:
    """Return the digest by which a normalised input is found."""
    return blake2b(canonical(items), digest_size=16).digest()
