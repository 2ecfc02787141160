from pydantic import Field

from rollmill.config.settings import ServiceSettings


class HeadSettings(ServiceSettings):
    """Settings of the head."""

    lease_seconds: float = Field(default=10.0, gt=0, le=3600)
    """A registration without a heartbeat for this long is dropped."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Hosts that services may have besides this machine, private addresses, and names without a dot or that end in
    `.local`, `.localhost` or `.svc`. `.example.org` stands for every name below it."""
    max_instances: int = Field(default=10_000, ge=1)
    """Registrations beyond this number are refused with 503."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    page_session_seconds: float = Field(default=12 * 3600.0, gt=0)
    """A login at the page lasts this long."""
    page_connections: int = Field(default=64, ge=1)
    """Most calls at once that the page's gateway and probes make to other services."""
