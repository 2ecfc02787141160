from rollmill.contracts.failures import Failure
from rollmill.errors import RollmillError

_PLAIN = frozenset({"connect-failed", "unauthorized", "service-not-found"})
"""Failures that say nothing about the rollout: whatever is asked, nobody answers, or nobody may ask."""


class HopelessRunError(RollmillError):
    """The run was stopped early, because it would only have gone on failing. A resume goes on with it."""

    slug, title, status = "run-stopped", "Run stopped", 502


class FailFast:
    """Notices early that a run is hopeless. A pure accumulator: no clock, no I/O.

    Two rules. No rollout was completed yet, and the last `count` attempts or more were all plainly unreachable or
    unauthorised. Or, if a share is given: at least `count` rollouts are settled, and that share of them failed.

    Args:
        count: attempts, or rollouts, that must be seen first; 0 turns both rules off.
        share: of settled rollouts, in (0, 1]; None turns the second rule off.
    """

    def __init__(self, *, count: int, share: float | None) -> None:
        self._count = count
        self._share = share
        self._completed = 0
        self._given_up = 0
        self._plain = 0

    def completed(self) -> None:
        """Note a graded rollout."""
        self._completed += 1

    def attempt_failed(self, failure: Failure, *, given_up: bool) -> None:
        """Note a failed attempt.

        Raises:
            HopelessRunError: that is enough.
        """
        self._given_up += given_up
        self._plain = self._plain + 1 if failure.type in _PLAIN else 0
        if not self._count:
            return
        if not self._completed and self._plain >= self._count:
            raise HopelessRunError(
                f"stopped after {self._plain} attempts, none of which reached the {failure.boundary}: "
                f"{failure.detail}. Mend that and go on with --resume"
            )
        settled = self._completed + self._given_up
        if self._share is not None and settled >= self._count and self._given_up >= self._share * settled:
            raise HopelessRunError(
                f"stopped: {self._given_up} of {settled} rollouts failed, the last one at the {failure.boundary} "
                f"({failure.type}: {failure.detail}). Go on with --resume"
            )
