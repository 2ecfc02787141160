import re
from typing import NamedTuple, Self

_TEXT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,127})/([0-9]{1,18}):([0-9]{1,18})/([0-9]{1,9})")


class AttemptId(NamedTuple):
    """Which attempt at which rollout of which run."""

    run_id: str
    task: int
    rollout: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.run_id}/{self.task}:{self.rollout}/{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read what `str` made; None for any other text."""
        found = _TEXT.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3]), int(found[4])) if found else None
