"""Which of the waiting conversations are scored together. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW = 1024
"""Only this many of the oldest are looked at, so that a long queue costs no more to choose from."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may become."""

    max_tokens: int
    """Most token slots, padding counted. A longer conversation is scored alone."""
    max_items: int
    packed: bool
    """Whether a batch costs the sum of its lengths, or its longest one for each of its conversations."""

    def slots(self, lengths: Sequence[int]) -> int:
        """Return what a batch costs in token slots."""
        return sum(lengths) if self.packed else max(lengths, default=0) * len(lengths)


def choose_batch(lengths: Sequence[int], limits: BatchLimits) -> list[int]:
    """Choose a batch: the oldest conversation heads it, so that none starves, and what fits best fills it.

    Args:
        lengths: tokens of each waiting conversation, oldest first, at least one.
        limits: how large the batch may become.

    Returns:
        Indices into `lengths`. Packed batches are filled in order of arrival, padded ones with the closest lengths.
    """
    others = range(1, min(len(lengths), WINDOW))
    ordered = others if limits.packed else sorted(others, key=lambda index: abs(lengths[index] - lengths[0]))
    chosen = [0]
    total = longest = lengths[0]
    for index in ordered:
        if len(chosen) >= limits.max_items:
            break
        longer = max(longest, lengths[index])
        cost = total + lengths[index] if limits.packed else longer * (len(chosen) + 1)
        if cost <= limits.max_tokens:
            chosen.append(index)
            total, longest = total + lengths[index], longer
    return chosen
