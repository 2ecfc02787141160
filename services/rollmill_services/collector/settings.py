from pathlib import Path

from pydantic import Field

from rollmill.config.settings import ServiceSettings


class CollectorSettings(ServiceSettings):
    """Settings of the collector."""

    data_dir: Path = Path("results")
    """Where runs are kept, and the only place that input files are read from."""
    topology_digest: str | None = None
    """Digest of the services' configuration, for the manifests of the runs."""
    recover: bool = True
    """Go on at start with the runs that an earlier process left unfinished."""
    max_runs: int = Field(default=32, ge=1)
    """Runs at work at once; a further one is refused with 429."""
