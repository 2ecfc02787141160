from pydantic import Field

from rollmill.config.settings import ServiceSettings


class RecordedSettings(ServiceSettings):
    """Settings of the `recorded` model."""

    rollouts: list[str] = Field(min_length=1)
    """Rollouts files (JSONL) to answer from; a relative path starts at the working directory."""
    loop: bool = True
    """Serve the recordings of an input again from the first one when all of them were served."""
