"""Opens the models of the settings and gives one reward for each conversation."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pstdev

import structlog

from rollmill.context import get_context
from rollmill.contracts.json import JsonObject
from rollmill.errors import NotReadyError, RollmillError, UpstreamTimeoutError
from rollmill_services.resources.reward_model.member import Conversation, Member, Scored
from rollmill_services.resources.reward_model.opening import OnLost, open_member
from rollmill_services.resources.reward_model.rendering import Rendered
from rollmill_services.resources.reward_model.scheduler import FAILURE_TYPE
from rollmill_services.resources.reward_model.scores import reduced
from rollmill_services.resources.reward_model.settings import RewardModelSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The reward of one conversation, and where it comes from."""

    reward: float
    members: tuple[tuple[str, Scored], ...]
    """Each model's name and score."""
    rewards: tuple[float, ...]
    """Each model's reward."""

    @property
    def rendered(self) -> Rendered:
        """The conversation as the first model read it."""
        return self.members[0][1].rendered

    def details(self) -> JsonObject:
        """Return the JSON of everything but the reward."""
        name, first = self.members[0]
        details: JsonObject = {"model": name, **_details(first)}
        if len(self.members) > 1:
            names = [each for each, _ in self.members]
            details |= {
                "model": " + ".join(names),
                "score_raw": None if any(one.score is None for _, one in self.members) else self.reward,
                "num_tokens": max(one.num_tokens for _, one in self.members),
                "truncated": any(one.truncated for _, one in self.members),
                "std": pstdev(self.rewards),
                "members": [
                    {"model": each, "reward": reward, **_details(one)}
                    for (each, one), reward in zip(self.members, self.rewards, strict=True)
                ],
            }
        return details


def _details(scored: Scored) -> JsonObject:
    score = scored.score
    heads = {"heads": score.heads} if score is not None and score.heads else {}
    return {
        "score_raw": None if score is None else score.raw,
        "num_tokens": scored.num_tokens,
        "truncated": scored.truncated,
        **({"too_long": True} if score is None else {}),
        **heads,
    }


class Scorer:
    """Scores conversations with one reward model or an ensemble. All calls from one event loop.

    Args:
        settings: of the service.
        on_lost: told when a model has no worker left.
    """

    def __init__(self, settings: RewardModelSettings, *, on_lost: OnLost = lambda _: None) -> None:
        self.settings = settings
        self._on_lost = on_lost
        self._names = [model.model_name for model in settings.models]
        self._members: list[Member] = []

    async def open(self) -> None:
        """Load, check and warm up everything.

        Raises:
            ConfigError: a model cannot be served as the settings want it.
        """
        if self.settings.inert:
            log.warning("settings_without_effect", names=self.settings.inert)
        if (
            "chat_template" in self.settings.tokenizer.model_fields_set
            and self.settings.tokenizer.chat_template is None
        ):
            log.warning("chat_template_is_the_models_own", hint="for NeMo RL's null write passthrough")
        try:
            for model in self.settings.models:
                self._members.append(await open_member(model, self.settings, on_lost=self._on_lost))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what was accepted within `drain_seconds`, and release everything."""
        members, self._members = self._members, []
        await asyncio.gather(*(member.close(self.settings.drain_seconds) for member in members))

    async def score(self, conversations: Sequence[Conversation]) -> list[Judgement | RollmillError]:
        """Score conversations within the call's deadline and `score_timeout_seconds`; each fails alone.

        Raises:
            OverloadedError: nothing was accepted: the queue is full, or the service is closing.
            UpstreamTimeoutError: the time was over first.
        """
        if not self._members:
            raise NotReadyError("the reward model is not loaded", retry_after=1.0)
        seconds = get_context().sooner(self.settings.score_timeout_seconds).remaining()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                columns = await asyncio.gather(*(member.score(conversations) for member in self._members))
        except TimeoutError:
            if not limit.expired():
                raise
            detail = f"not scored within {seconds or 0.0:.1f} s"
            raise UpstreamTimeoutError(detail, upstream_type=FAILURE_TYPE, retryable=True) from None
        return [self._judge(row) for row in zip(*columns, strict=True)]

    async def render(self, conversations: Sequence[Conversation]) -> list[Rendered | RollmillError]:
        """Render and tokenise for the first model, without scoring."""
        if not self._members:
            raise NotReadyError("the reward model is not loaded", retry_after=1.0)
        return await self._members[0].render(conversations)

    def report(self) -> JsonObject:
        """Return what the service tells about itself: models, batching, queue, counters."""
        return {"backend": self.settings.backend, "members": [member.report() for member in self._members]}

    def _judge(self, row: Sequence[Scored | RollmillError]) -> Judgement | RollmillError:
        scored: list[Scored] = []
        for one in row:
            if isinstance(one, RollmillError):
                return one  # a reward of some of the members would be another reward
            scored.append(one)
        fixed = self.settings.too_long_reward
        rewards = tuple(fixed if one.score is None else one.score.reward for one in scored)
        too_long = any(one.score is None for one in scored)
        reward = fixed if too_long else reduced(rewards, self.settings.reduce, self.settings.reduce_k)
        return Judgement(reward, tuple(zip(self._names, scored, strict=True)), rewards)
