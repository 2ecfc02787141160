import asyncio
from dataclasses import dataclass
from importlib.util import find_spec

from pydantic import Field

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.errors import ConfigError, InputError
from rollmill.server.environment import Environment, EnvironmentSettings, Step
from rollmill.server.sessions import Session
from rollmill_services.resources.toy_text.actions import action_number
from rollmill_services.resources.toy_text.games import GAMES, Game, GameShop, Rules

_PLAY = "play"
_LARGEST_SEED = 2**31 - 1


class ToyTextSettings(EnvironmentSettings):
    """Settings of the `toy_text` resources service."""

    max_invalid_actions: int = Field(default=3, ge=1)
    """So many answers without an action end an episode."""
    invalid_action_reward: float = Field(default=0.0, allow_inf_nan=False)
    """Reward of an answer without an action."""


@dataclass(slots=True)
class _Play:
    """One session's game."""

    rules: Rules
    game: Game
    seed: int
    limit: int | None
    steps: int = 0
    invalid: int = 0


class ToyText(Environment):
    """The toy text games of Gymnasium: FrozenLake, CliffWalking, Taxi and Blackjack, told and played in words."""

    Settings = ToyTextSettings

    def __init__(self, settings: ToyTextSettings | None = None) -> None:
        super().__init__(settings)
        self._options = settings or ToyTextSettings()
        self._shop = GameShop()

    async def startup(self) -> None:
        """Load Gymnasium, which takes a second or two.

        Raises:
            ConfigError: it is not installed.
        """
        if find_spec("gymnasium") is None:
            raise ConfigError("toy_text needs Gymnasium: pip install 'rollmill[gymnasium]'")
        await asyncio.to_thread(self._shop.game, "blackjack", {})

    async def seed_session(self, session: Session, row: Row) -> None:
        """Set up the game of a row.

        Raises:
            InputError: `game`, `seed` or `options` is missing or wrong.
        """
        rollout = Rollout(row)
        name = rollout.require("game")
        if not isinstance(name, str) or name not in GAMES:
            raise _wrong("game", f"must be one of {', '.join(GAMES)}")
        seed = rollout.require("seed")
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
            raise _wrong("seed", f"must be an integer from 0 to {_LARGEST_SEED}")
        game, limit = self._shop.game(name, _options(rollout, name))
        session.state[_PLAY] = _Play(GAMES[name], game, seed, limit)

    async def reset(self, session: Session) -> tuple[JsonValue, JsonObject]:
        """Begin the row's game; the same seed is the same game."""
        play: _Play = session.state[_PLAY]
        play.steps = play.invalid = 0
        seen, _ = play.game.reset(seed=play.seed)
        return f"{play.rules.text}\n\n{_told(play, seen)}", {}

    async def step(self, action: str, session: Session) -> Step:
        """Take the action that the answer names. One that names none leaves the game as it is."""
        play: _Play = session.state[_PLAY]
        number = action_number(action, play.rules.actions)
        if number is None:
            return self._refused(play)
        seen, reward, terminated, truncated, _ = play.game.step(number)
        play.steps += 1
        truncated = truncated or (not terminated and play.steps == play.limit)
        over = terminated or truncated
        text = f"{play.rules.tell(play.game, seen)}\nThe game is over." if over else _told(play, seen)
        return Step(text, float(reward), bool(terminated), bool(truncated))

    def _refused(self, play: _Play) -> Step:
        play.invalid += 1
        over = play.invalid >= self._options.max_invalid_actions
        text = f"That names no action. {_asked(play.rules)}"
        return Step(text, self._options.invalid_action_reward, truncated=over, info={"invalid_action": True})

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward with the game's own rewards; `invalid_actions` counts the answers without an action."""
        verdict = await super().verify(rollout, session)
        return Verdict(verdict.reward, {**verdict.details, "invalid_actions": session.state[_PLAY].invalid})


def _told(play: _Play, seen: JsonValue) -> str:
    return f"{play.rules.tell(play.game, seen)}\n{_asked(play.rules)}"


def _asked(rules: Rules) -> str:
    return f"Actions: {', '.join(rules.actions)}. Answer with one of them, as in <action>{rules.actions[0]}</action>."


def _options(rollout: Rollout, name: str) -> JsonObject:
    given = rollout.field("options", {})
    if not isinstance(given, dict):
        raise _wrong("options", "must be an object")
    allowed = GAMES[name].options
    for option, value in given.items():
        if option not in allowed:
            raise _wrong(f"options/{option}", f"{name} has no such option; it has {', '.join(allowed)}")
        if not allowed[option](value):
            raise _wrong(f"options/{option}", "is not a value that this option takes")
    return given


def _wrong(name: str, detail: str) -> InputError:
    return InputError(f"{name!r}: {detail}", errors=[{"pointer": f"/{name}", "detail": detail}])
