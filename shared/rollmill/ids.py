import os
import re
import secrets
from datetime import UTC, datetime

_UNSAFE = re.compile(r"[^a-zA-Z0-9._-]+")


def new_id(prefix: str = "") -> str:
    """Return a random id of 96 bits in hexadecimal, with a readable prefix."""
    return prefix + os.urandom(12).hex()


def new_run_id(name: str, now: datetime | None = None) -> str:
    """Make a run id from the time and a name: `20261120-193800-weather-3fa1`, safe as a file name."""
    moment = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    label = _UNSAFE.sub("-", name).strip("-.")[:40] or "run"
    return f"{moment}-{label}-{secrets.token_hex(2)}"
