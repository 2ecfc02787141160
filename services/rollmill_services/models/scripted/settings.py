from typing import Annotated

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import FileRef, Incidental


class ScriptedSettings(ServiceSettings):
    """Settings of the `scripted` model."""

    answers: Annotated[list[str], FileRef()] = Field(default_factory=list)
    """Task files (JSONL) whose `expected_answer` the model knows; in a topology, relative to its file."""
    skill: float | None = Field(default=None, ge=0, le=1)
    """Mean probability of a right answer; each task has its own around it. Not set: 0.6 for `answers`, and calls of
    tools are never wrong."""
    seed: int = 0
    """Another seed gives other answers."""
    delay_seconds: Annotated[float, Incidental()] = Field(default=0.0, ge=0)
    """How long each answer takes."""
