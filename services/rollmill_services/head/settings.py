from ipaddress import ip_network

from pydantic import Field, field_validator

from rollmill.config.settings import ServiceSettings


class HeadSettings(ServiceSettings):
    """Settings of the head."""

    lease_seconds: float = Field(default=10.0, gt=0, le=3600)
    """A registration without a heartbeat for this long is dropped."""
    allowed_hosts: list[str] = Field(default_factory=list)
    """Hosts that services may have besides this machine, private addresses, and names without a dot or that end in
    `.local`, `.localhost` or `.svc`. `.example.org` stands for every name below it, `100.64.0.0/10` for a network."""
    max_instances: int = Field(default=10_000, ge=1)
    """Registrations beyond this number are refused with 503."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    page_session_seconds: float = Field(default=12 * 3600.0, gt=0)
    """A login at the page lasts this long."""
    page_connections: int = Field(default=64, ge=1)
    """Most calls at once that the page's gateway passes on to other services."""

    @field_validator("allowed_hosts")
    @classmethod
    def _networks_can_be_read(cls, hosts: list[str]) -> list[str]:
        for host in hosts:
            if "/" in host:
                ip_network(host, strict=False)
        return hosts
