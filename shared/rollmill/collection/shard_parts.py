"""Which parts of a sharded collection there are, as their manifests tell."""

from collections.abc import Iterable
from dataclasses import dataclass

from rollmill.artifacts.manifest import Digests


@dataclass(frozen=True, slots=True)
class ShardParts:
    """Some parts of one run, each with its number."""

    count: int
    """How many make the whole."""
    present: frozenset[int]

    @classmethod
    def of(cls, digests: Iterable[Digests]) -> "ShardParts | None":
        """Join what several runs are; None when one has no number, or they are of other counts."""
        present: set[int] = set()
        counts: set[str] = set()
        for one in digests:
            indices, _, count = (one.shard or "").partition("/")
            counts.add(count)
            present.update(map(int, indices.split(",") if count else ()))
        count = counts.pop() if len(counts) == 1 else ""
        return cls(int(count), frozenset(present)) if count else None

    def __str__(self) -> str:
        return f"{','.join(map(str, sorted(self.present)))}/{self.count}"

    @property
    def missing(self) -> list[int]:
        """The numbers that are not there."""
        return sorted(set(range(self.count)) - self.present)
