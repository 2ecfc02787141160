from typing import Literal, TypeAlias

from rollmill.contracts.wire import WireModel

Boundary: TypeAlias = Literal["agent", "model", "resources", "collector"]


class Failure(WireModel):
    """Why a rollout has no reward. A failed rollout is data, not an exception."""

    boundary: Boundary
    """The service that failed, not the one that noticed."""
    type: str
    """Problem slug, e.g. `upstream-timeout`; stable across releases."""
    detail: str
    retryable: bool
