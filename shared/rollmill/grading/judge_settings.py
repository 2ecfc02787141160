from typing import Annotated

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import ServiceRef
from rollmill.contracts.json import JsonObject
from rollmill.grading.judging import Asks, Judge


class JudgeSettings(ServiceSettings):
    """Settings of a resources service that grades with a judge."""

    judge: Annotated[str, ServiceRef("model")] = Field(min_length=1)
    """The model service that judges; use another one than the policy's."""
    twice: bool = True
    """Ask once more with the order turned round; only what both verdicts say counts."""
    attempts: int = Field(default=3, ge=1, le=10)
    """How often the judge is asked for a verdict that can be read."""
    params: JsonObject = Field(default_factory=dict)
    """Sampling parameters of the judge's requests."""

    def judge_of(self, models: Asks) -> Judge:
        """Return the judge, reached through these models."""
        return Judge(models, self.judge, params=self.params, attempts=self.attempts)
