from collections.abc import Sequence
from typing import Final

from rollmill.collection.outcomes import Completed, Failed
from rollmill.contracts import rows
from rollmill.contracts.rows import tokens_used
from rollmill.observability.meters import Counter, Histogram, Meter

REWARDS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Upper ends of the buckets of rewards: a reward of 0 is in the first one, 1 in the last but one."""


class RolloutMeter:
    """Counts how rollouts went, over all runs of a process."""

    def __init__(self) -> None:
        self._settled = Counter("rollmill_rollouts_total", "Rollouts settled.", "agent", "outcome")
        self._failures = Counter("rollmill_failed_attempts_total", "Attempts that failed.", "boundary", "type")
        self._reward = Histogram("rollmill_reward", "Rewards given.", "agent", bounds=REWARDS)
        self._seconds = Histogram("rollmill_rollout_seconds", "Time of the attempt that succeeded.", "agent")
        self._tokens = Counter("rollmill_tokens_total", "Tokens used, failed attempts included.", "agent")

    @property
    def meters(self) -> Sequence[Meter]:
        """All its numbers."""
        return self._settled, self._failures, self._reward, self._seconds, self._tokens

    def completed(self, agent: str, outcome: Completed) -> None:
        """Count a graded rollout."""
        self._settled.add(agent, "completed")
        self._reward.observe(outcome.reward, agent)
        self._seconds.observe(outcome.row[rows.TIMING]["seconds"], agent)
        self._tokens.add(agent, amount=tokens_used(outcome.row))

    def attempt_failed(self, agent: str, failed: Failed, *, given_up: bool) -> None:
        """Count a failed attempt, and its rollout when it is given up on."""
        self._failures.add(failed.failure.boundary, failed.failure.type)
        self._tokens.add(agent, amount=tokens_used(failed.row or failed.unverified or {}))
        if given_up:
            self._settled.add(agent, "failed")
