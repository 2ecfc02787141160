from pydantic import Field

from rollmill.config.settings import ServiceSettings


class HeadSettings(ServiceSettings):
    """Settings of the head."""

    lease_seconds: float = Field(default=10.0, gt=0, le=3600)
    """A registration without a heartbeat for this long is dropped."""
