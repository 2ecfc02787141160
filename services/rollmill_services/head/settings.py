from pydantic import Field

from rollmill.config.settings import ServiceSettings


class HeadSettings(ServiceSettings):
    """Settings of the head."""

    lease_seconds: float = Field(default=10.0, gt=0, le=3600)
    """A registration without a heartbeat for this long is dropped."""
    page_session_seconds: float = Field(default=12 * 3600.0, gt=0)
    """A login at the page lasts this long."""
    page_connections: int = Field(default=64, ge=1)
    """Most calls at once that the page's gateway and probes make to other services."""
