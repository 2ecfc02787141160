"""The phases of a rollout: how long each may take, and whose fault it is when one fails."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NoReturn

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


class phase:
    """Bound the calls made inside by `seconds` and the rollout's deadline, and name phase and service in their errors.

    The block is a span, which tells the tool that is called. Not a generator: that costs three times as much, five
    times in each rollout.

    Raises:
        UpstreamTimeoutError: the time was over. `retryable` when it was the phase's own.
    """

    __slots__ = ("_bounded", "_name", "_own", "_seconds", "_span", "_token")

    def __init__(self, name: Phase, seconds: float, *, tool: str = "") -> None:
        self._name: Phase = name
        self._seconds = seconds
        self._bounded, self._own = _bounds(get_context(), seconds)
        self._span = self._bounded.tracer.span(name, "client", {"rollmill.tool": tool} if tool else None)

    def __enter__(self) -> None:
        self._token = set_context(self._bounded)
        self._span.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._span.__exit__(kind, error, trace)
        finally:
            reset_context(self._token)
        if isinstance(error, RollmillError):
            self._raise(error)

    def _raise(self, error: RollmillError) -> NoReturn:
        bounded = self._bounded
        try:
            with upstream("model" if self._name == "model" else "resources"):
                raise error
        except DeadlineError as late:
            late.extensions.setdefault("phase", self._name)
            if bounded.deadline is None or time.monotonic() < bounded.deadline - _RACE_SECONDS:
                raise  # a time limit of the service's own
            whose = f"the {self._seconds:g} s of timeouts.{self._name}_seconds" if self._own else "the rollout's time"
            detail = f"{whose} passed in the phase {self._name!r}: {late.detail}"
            raise UpstreamTimeoutError(detail, **{**late.extensions, "retryable": self._own}) from late
        except RollmillError as named:
            named.extensions.setdefault("phase", self._name)
            raise


def _bounds(rollout: CallContext, seconds: float) -> tuple[CallContext, bool]:
    """Return the circumstances of a phase, and whether its own time is what ends it, not the rollout's."""
    if rollout.deadline is None:
        return rollout.sooner(seconds), True
    now = time.monotonic()
    left = max(0.0, rollout.deadline - now)
    usable = left - min(LEEWAY_SECONDS, left / 2)
    return rollout.until(now + min(seconds, usable)), seconds < usable


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
