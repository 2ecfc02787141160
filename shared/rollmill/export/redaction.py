import os
import re
from typing import Final

from rollmill.observability.logging import MASK

SECRET_VARIABLES: Final = (
    "WANDB_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "DATABRICKS_TOKEN",
)
"""What the trackers' libraries take their secrets from."""

_USERINFO: Final = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def redacted(text: str) -> str:
    """Mask the secrets that a tracker's library may put into its messages: its variables', and those inside URLs."""
    for name in SECRET_VARIABLES:
        if secret := os.environ.get(name, "").strip():
            text = text.replace(secret, MASK)
    return _USERINFO.sub(MASK, text)
