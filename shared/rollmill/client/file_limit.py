"""Every open connection is a file descriptor; the usual soft limit of 1,024 is less than a busy collector needs."""

import resource
from contextlib import suppress

from rollmill.errors import ConfigError

SPARE = 128
"""Descriptors for everything but the calls in flight: files, the head, idle connections."""


def raise_file_limit() -> int:
    """Allow this process as many open files as the system lets it have, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS says `unlimited` and then refuses it
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft >= 0 else 2**31


def check_file_limit(concurrency: int, limit: int) -> None:
    """Refuse a concurrency that the limit cannot carry, before anything runs.

    Raises:
        ConfigError: says the number needed, and what to do.
    """
    needed = concurrency + SPARE
    if limit < needed:
        raise ConfigError(
            f"{concurrency} rollouts in flight need {needed} open files, and this process may have {limit}: "
            f"raise the limit (ulimit -n {needed}), or use --concurrency {max(1, limit - SPARE)}"
        )
