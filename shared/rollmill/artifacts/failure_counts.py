from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.artifacts.reader import iter_finished
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import FAILURE_CLASS, agent_name

_REFUSED = "reward-not-finite"


@dataclass(slots=True)
class FailureCounts:
    """Failed attempts, by class and by the service that failed."""

    by_class: Counter[str] = field(default_factory=Counter)
    by_boundary: Counter[str] = field(default_factory=Counter)

    def add(self, other: "FailureCounts") -> None:
        """Add what another one has counted."""
        self.by_class.update(other.by_class)
        self.by_boundary.update(other.by_boundary)

    def refuse(self, rollouts: int) -> None:
        """Count rollouts that were left out because their reward is not a finite number."""
        if rollouts:
            self.by_class[_REFUSED] += rollouts
            self.by_boundary["resources"] += rollouts

    def to_json(self) -> JsonObject:
        """Return both as JSON objects, the most frequent first."""
        return {"by_class": dict(self.by_class.most_common()), "by_boundary": dict(self.by_boundary.most_common())}


def count_failures(path: Path) -> dict[str, FailureCounts]:
    """Count the lines of a failures file by agent; the agent is empty where none is named.

    Raises:
        InputError: a line is not a JSON object; names file and line.
    """
    counts: dict[str, FailureCounts] = {}
    for _, _, row in iter_finished(path) if path.exists() else ():
        of_agent = counts.setdefault(agent_name(row) or "", FailureCounts())
        of_agent.by_class[str(row.get(FAILURE_CLASS) or "unclassified")] += 1
        failure = row.get("failure")
        boundary = failure.get("boundary") if isinstance(failure, dict) else None
        of_agent.by_boundary[str(boundary or "unknown")] += 1
    return counts
