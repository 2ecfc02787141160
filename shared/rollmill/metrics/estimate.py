import math
from dataclasses import dataclass
from typing import Literal

from rollmill.contracts.json import JsonObject

_NUMBERS = ("value", "standard_error", "low", "high")


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number, how far it can be trusted, and what stands behind it. An undefined number is None."""

    value: float | None
    standard_error: float | None
    """Standard error over tasks; None with fewer than two tasks, which say nothing about how tasks differ."""
    low: float | None
    """Lower end of the 95 % interval."""
    high: float | None
    """Upper end of the 95 % interval."""
    method: Literal["analytic", "bootstrap"]
    """How the interval was made."""
    tasks_used: int
    """Tasks that the number can be computed for, such as those with at least k rollouts for `pass@k`."""
    tasks_total: int
    rollouts: int
    """Rollouts of the tasks used."""

    def to_json(self) -> JsonObject:
        """Return the estimate as a JSON object; undefined numbers are left out."""
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return {
            **{name: number for name, number in numbers.items() if number is not None and math.isfinite(number)},
            "method": self.method,
            "tasks_used": self.tasks_used,
            "tasks_total": self.tasks_total,
            "rollouts": self.rollouts,
        }
