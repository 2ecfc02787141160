import asyncio
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConflictError, RollmillError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session

_PLAYED = "rollmill.played"
"""Key of the session's state under which the course of the episode is kept."""


class EnvironmentSettings(ServiceSettings):
    """Settings of every environment of the Gymnasium kind."""

    reward: Literal["sum", "last"] = "sum"
    """What the rollout is rewarded with: the sum of the rewards of all its steps, or the last step's."""


@dataclass(frozen=True, slots=True)
class Step:
    """What follows an action."""

    observation: JsonValue
    """What the model sees next: text, or JSON that is shown as text."""
    reward: float = 0.0
    """Must be finite."""
    terminated: bool = False
    """The episode reached an end of its own."""
    truncated: bool = False
    """The environment stopped the episode, for example because it took too long."""
    info: Mapping[str, JsonValue] = field(default_factory=dict)
    """For people and logs; the model does not see it."""

    def wire(self) -> JsonObject:
        """Return the body of the answer to `/step`."""
        return {
            "observation": self.observation,
            "reward": float(self.reward),
            "terminated": self.terminated,
            "truncated": self.truncated,
            "info": dict(self.info),
        }


@dataclass(slots=True)
class _Played:
    """The course of an episode, as far as the verdict needs it."""

    steps: int = 0
    total: float = 0.0
    last: float = 0.0
    terminated: bool = False
    truncated: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One step at a time: what comes after it depends on it."""


class Environment(Resources):
    """An environment that answers each action with an observation and a reward, as Gymnasium's do.

    Subclass it and write `reset` and `step`; `seed_session` may check the task, `close_session` releases what the
    episode holds, and `session.state` is the author's own. The verdict is made from the rewards of the steps. The agent
    `gymnasium_loop` plays it.

    Source: the interface of `gymnasium.Env` (Towers et al. 2024, arXiv:2407.17032), with text as actions.
    """

    Settings: ClassVar[type[ServiceSettings]] = EnvironmentSettings
    reverify_mode: ClassVar[ReverifyMode] = "unsupported"
    answer_field: ClassVar[str | None] = None

    @abstractmethod
    async def reset(self, session: Session) -> tuple[JsonValue, JsonObject]:
        """Begin an episode of the task in `session.row`; called again, another one of the same task.

        Returns:
            The first observation, and information that the model does not see.

        Raises:
            InputError: the row lacks what the environment needs.
        """

    @abstractmethod
    async def step(self, action: str, session: Session) -> Step:
        """Take an action, given as the model wrote it: anything from nothing to a megabyte of anything.

        An action that means nothing is no exception: it has an observation that says so.
        """

    async def begin(self, session: Session) -> JsonObject:
        """Reset, and forget what was played before; return the body of the answer to `/reset`."""
        observation, info = await self.reset(session)
        session.state[_PLAYED] = _Played()
        return {"observation": observation, "info": info}

    async def advance(self, action: str, session: Session) -> Step:
        """Take an action and keep its reward for the verdict.

        Raises:
            ConflictError: no episode has begun, or it is over.
        """
        played = session.state.get(_PLAYED)
        if played is None:
            raise ConflictError("no episode has begun: call /reset first")
        async with played.turn:
            if played.terminated or played.truncated:
                raise ConflictError("the episode is over: call /reset first")
            step = await self.step(action, session)
            if not math.isfinite(step.reward):
                raise RollmillError(f"the environment gave the reward {step.reward}, which is not finite")
            played.steps += 1
            played.total += step.reward
            played.last = step.reward
            played.terminated, played.truncated = step.terminated, step.truncated
            return step

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward with the sum of the steps' rewards, or with the last one (setting `reward`).

        Raises:
            ConflictError: no episode was played in this session.
        """
        played = session.state.get(_PLAYED)
        if played is None:
            raise ConflictError("no episode was played in this session")
        last_only = isinstance(self.settings, EnvironmentSettings) and self.settings.reward == "last"
        details = {"steps": played.steps, "terminated": played.terminated, "truncated": played.truncated}
        return Verdict(played.last if last_only else played.total, details)
