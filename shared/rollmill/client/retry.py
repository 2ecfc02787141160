from collections.abc import Callable
from dataclasses import dataclass

from rollmill.errors import REFUSED, ConnectError, ConnectionLostError, OverloadedError, RollmillError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of the retries of one call."""

    max_attempts: int = 4
    """Sends of the same call, the first included."""
    base_seconds: float = 0.1
    """Upper end of the first delay; it doubles with each attempt."""
    cap_seconds: float = 10.0
    """No delay of our own is longer; a server's `Retry-After` may be, up to `retry_after_cap_seconds`."""
    retry_after_cap_seconds: float = 60.0


def retry_delay(
    error: RollmillError,
    *,
    attempt: int,
    has_key: bool,
    policy: RetryPolicy,
    uniform: Callable[[float, float], float],
) -> float | None:
    """Decide whether the same call may be sent again, and after how long. A pure function.

    Only what cannot have been processed is sent again blindly: a failed connect, or a refusal, for overload or because
    the call arrived after its deadline (a caller whose own time is up does not ask). A connection that broke later is
    retried only under an idempotency key, which the server honours. Failures that a service reports about itself are
    the caller's to judge.

    Args:
        error: why the last attempt failed.
        attempt: how many attempts were made, >= 1.
        has_key: whether the call carries an idempotency key.
        policy: bounds.
        uniform: source of jitter, `random.uniform`.

    Returns:
        Seconds to wait (full jitter; at least the server's `Retry-After`), or None to give up.
    """
    if attempt >= policy.max_attempts:
        return None
    # A refusal that names a boundary was passed on by a service that had begun to work: not a refusal of this call.
    refused = isinstance(error, OverloadedError) or REFUSED in error.extensions
    safe = (refused and "boundary" not in error.extensions) or isinstance(error, ConnectError)
    if not safe and not (has_key and isinstance(error, ConnectionLostError)):
        return None
    if error.extensions.get("retryable") is False:
        return None
    delay = uniform(0.0, min(policy.cap_seconds, policy.base_seconds * 2.0 ** min(attempt - 1, 64)))
    if error.retry_after is not None:
        delay += min(max(error.retry_after, 0.0), policy.retry_after_cap_seconds)
    return delay
