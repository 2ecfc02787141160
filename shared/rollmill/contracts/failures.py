from typing import Final, Literal, TypeAlias

from rollmill.contracts.wire import WireModel

Boundary: TypeAlias = Literal["agent", "model", "resources", "collector"]
Phase: TypeAlias = Literal["seed", "model", "tool", "verify"]

UNVERIFIED: Final = "unverified"
"""Member of the problem that an agent answers when grading failed: what the row had gained before, the `response` in
most cases. It goes to the failures file, so that the rollout can be graded again without its model."""
MAX_UNVERIFIED_BYTES: Final = 4 * 1024 * 1024
"""A row that gained more than this, as JSON, is not kept."""


class Failure(WireModel):
    """Why a rollout has no reward. A failed rollout is data, not an exception."""

    boundary: Boundary
    """The service that failed, not the one that noticed."""
    type: str
    """Problem slug, e.g. `upstream-timeout`; stable across releases."""
    detail: str
    retryable: bool
    phase: Phase | None = None
    """Of the rollout, when its agent told."""
