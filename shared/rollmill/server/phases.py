"""The phases of a rollout: how long each may take, and whose fault it is when one fails."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rollmill.context import CallContext, get_context, reset_context, set_context
from rollmill.contracts.failures import Boundary, Phase
from rollmill.errors import (
    DeadlineError,
    OverloadedError,
    RollmillError,
    UpstreamError,
    UpstreamTimeoutError,
    is_retryable,
)

LEEWAY_SECONDS = 0.25
"""A phase ends so long before the rollout's deadline, so that the caller can still be told which one it was."""
_RACE_SECONDS = 0.1
"""Both ends of a call watch its deadline; the other one may notice it so much earlier."""


@contextmanager
def phase(name: Phase, seconds: float) -> Iterator[None]:
    """Bound the calls made inside by `seconds` and the rollout's deadline, and name phase and service in their errors.

    Raises:
        UpstreamTimeoutError: the time was over. `retryable` when it was the phase's own.
    """
    bounded, own = _bounds(get_context(), seconds)
    token = set_context(bounded)
    try:
        with upstream("model" if name == "model" else "resources"):
            yield
    except DeadlineError as error:
        error.extensions.setdefault("phase", name)
        if bounded.deadline is None or time.monotonic() < bounded.deadline - _RACE_SECONDS:
            raise  # a time limit of the service's own
        whose = f"the {seconds:g} s of timeouts.{name}_seconds" if own else "the rollout's time"
        detail = f"{whose} passed in the phase {name!r}: {error.detail}"
        raise UpstreamTimeoutError(detail, **{**error.extensions, "retryable": own}) from error
    except RollmillError as error:
        error.extensions.setdefault("phase", name)
        raise
    finally:
        reset_context(token)


def _bounds(rollout: CallContext, seconds: float) -> tuple[CallContext, bool]:
    """Return the circumstances of a phase, and whether its own time is what ends it, not the rollout's."""
    if rollout.deadline is None:
        return rollout.sooner(seconds), True
    left = max(0.0, rollout.deadline - time.monotonic())
    usable = left - min(LEEWAY_SECONDS, left / 2)
    return rollout.sooner(min(seconds, usable)), seconds < usable


@contextmanager
def upstream(boundary: Boundary) -> Iterator[None]:
    """Name the service that failed, not the one that noticed.

    Overload and passed deadlines keep their meaning for the caller; anything else becomes an `UpstreamError` that
    carries the original's type and status.
    """
    try:
        yield
    except RollmillError as error:
        error.extensions.setdefault("boundary", boundary)
        if isinstance(error, OverloadedError | DeadlineError):
            raise
        extensions = {
            **error.extensions,
            "upstream_type": error.extensions.get("upstream_type", error.slug),
            "upstream_status": error.extensions.get("upstream_status", error.status),
            "retryable": is_retryable(error),
        }
        raise UpstreamError(error.detail, **extensions) from error
