import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MAX_SHARDS: Final = 100_000
"""As many as fit the five digits of a file name."""


@dataclass(frozen=True, slots=True)
class ShardNumber:
    """Which part of a run: `0/4` is the first of four. Counted from 0, as an Indexed Job of Kubernetes counts."""

    index: int
    """0 <= index < count."""
    count: int
    """1 <= count <= 100,000."""

    @classmethod
    def parse(cls, text: str) -> "ShardNumber":
        """Read `INDEX/COUNT`.

        Raises:
            ValueError: it is not that, or out of range; says which shards there are.
        """
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None:
            raise ValueError(f"a shard is INDEX/COUNT, such as 0/4 for the first of four, got {text!r}")
        index, count = int(found[1]), int(found[2])
        if not 1 <= count <= MAX_SHARDS:
            raise ValueError(f"there can be 1 to {MAX_SHARDS} shards, got {text!r}")
        if index >= count:
            raise ValueError(f"{text} is out of range: the shards are 0/{count} to {count - 1}/{count}")
        return cls(index, count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def takes(self, task: int) -> bool:
        """Say whether a task, by its index, is in this shard: each task is in exactly one."""
        return task % self.count == self.index

    def output(self, path: Path) -> Path:
        """Return where this shard of a run goes: `x-00000-of-00004.jsonl` for `x.jsonl`."""
        return path.with_name(f"{path.stem}-{self.index:05d}-of-{self.count:05d}{path.suffix}")
