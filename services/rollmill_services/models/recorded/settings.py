from typing import Annotated

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import FileRef


class RecordedSettings(ServiceSettings):
    """Settings of the `recorded` model."""

    rollouts: Annotated[list[str], FileRef()] = Field(min_length=1)
    """Rollouts files (JSONL) to answer from; in a topology, relative to its file."""
    loop: bool = True
    """Serve the recordings of an input again from the first one when all of them were served."""
