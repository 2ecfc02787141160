from typing import ClassVar

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import REWARD, Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import RollmillError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.reward_model.conversations import prompt_messages, rollout_messages
from rollmill_services.resources.reward_model.metrics import PREFIX, length_correlation, reward_metrics
from rollmill_services.resources.reward_model.opening import OnLost
from rollmill_services.resources.reward_model.scorer import Scorer
from rollmill_services.resources.reward_model.settings import RewardModelSettings

DETAILS = "reward_model"
"""Field of a verified row that tells where the reward comes from."""


class RewardModel(Resources):
    """Scores whole conversations with a sequence-classification reward model."""

    Settings: ClassVar[type[ServiceSettings]] = RewardModelSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"
    answer_field: ClassVar[str | None] = None

    def __init__(self, settings: RewardModelSettings, *, on_lost: OnLost = lambda _: None) -> None:
        super().__init__(settings)
        self.scorer = Scorer(settings, on_lost=on_lost)

    async def startup(self) -> None:
        """Load the model, check it and warm it up.

        Raises:
            ConfigError: torch or transformers is missing, or the model cannot be served.
        """
        await self.scorer.open()

    async def shutdown(self) -> None:
        """Finish the conversations that were accepted, and release the model."""
        await self.scorer.close()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a row whose conversation could not be scored.

        Raises:
            InputError: the row has no input, or one that is not text.
        """
        prompt_messages(row)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward the conversation with the model's score. A rollout without any answer is scored with an empty one.

        Raises:
            InputError: the conversation is not text, too long, or refused by the chat template.
            RollmillError: it could not be scored; the failure class is `reward_model_failed`.
        """
        [judged] = await self.scorer.score([rollout_messages(rollout)])
        if isinstance(judged, RollmillError):
            raise judged
        return Verdict(judged.reward, {DETAILS: judged.details()})

    def compute_metrics(self, tasks: list[list[Row]]) -> JsonObject:
        """Return NeMo RL's five metrics, and how rewards go with lengths."""
        rows = [row for task in tasks for row in task]
        rewards = [float(row[REWARD]) for row in rows]
        metrics: JsonObject = dict(reward_metrics(rewards))
        lengths = [_num_tokens(row) for row in rows]
        together = [(reward, length) for reward, length in zip(rewards, lengths, strict=True) if length is not None]
        linked = length_correlation([reward for reward, _ in together], [length for _, length in together])
        return metrics if linked is None else {**metrics, f"{PREFIX}/reward_length_correlation": linked}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        """Every mean, and the metrics of the reward model."""
        return {name: value for name, value in agent_metrics.items() if name.startswith(("mean/", f"{PREFIX}/"))}


def _num_tokens(row: Row) -> float | None:
    details = row.get(DETAILS)
    value = details.get("num_tokens") if isinstance(details, dict) else None
    return float(value) if isinstance(value, int | float) else None
