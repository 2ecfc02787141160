from pathlib import Path

from pydantic import Field

from rollmill.config.settings import ServiceSettings


class ProfilerSettings(ServiceSettings):
    """Settings of the profiler."""

    data_dir: Path = Path("results")
    """Where runs are kept, and the only place that files are read from."""
    max_rows: int = Field(default=1_000_000, ge=1)
    """Most rollouts, and most input rows, that one request may post."""
    max_profiles: int = Field(default=2, ge=1)
    """Profiles computed at once; further requests wait."""
