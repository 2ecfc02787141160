"""Gymnasium's toy text games, as text: what they are called, what may be set, how a state is told.

Nothing here loads Gymnasium before `GameShop.game` is called.
"""

import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rollmill.contracts.json import JsonObject, JsonValue, canonical

_LARGEST_MAP = 16
_MOST_TEMPLATES = 64
_HIGHLIGHTED = re.compile(r"\x1b\[41m(.)\x1b\[0m")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_PLACES = ("at R (red)", "at G (green)", "at Y (yellow)", "at B (blue)", "in the taxi")


class Game(Protocol):
    """What is used of a `gymnasium.Env`."""

    def reset(self, *, seed: int) -> tuple[JsonValue, JsonObject]:
        """Begin; return the observation and information."""

    def step(self, action: int) -> tuple[JsonValue, float, bool, bool, JsonObject]:
        """Return observation, reward, terminated, truncated and information."""

    def render(self) -> JsonValue:
        """Return the state as text, where the game can."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One game: how it is made, played and told."""

    gymnasium_id: str
    actions: tuple[str, ...]
    """Names of the actions, in the order of Gymnasium's numbers."""
    text: str
    """What the model is told before the first observation."""
    tell: Callable[[Game, JsonValue], str]
    """Renders a game and its observation."""
    options: Mapping[str, Callable[[JsonValue], bool]]
    """Arguments that a row may set, and what each accepts."""
    renders: bool = True


def _boolean(value: JsonValue) -> bool:
    return isinstance(value, bool)


def _lake_map(value: JsonValue) -> bool:
    """Whether a value is a map: equally long lines of S, F, H and G with one start and a goal."""
    if not isinstance(value, list) or not 1 <= len(value) <= _LARGEST_MAP:
        return False
    if not all(isinstance(line, str) and 1 <= len(line) <= _LARGEST_MAP and set(line) <= set("SFHG") for line in value):
        return False
    cells = "".join(value)
    return len(set(map(len, value))) == 1 and cells.count("S") == 1 and "G" in cells


def _tell_lake(game: Game, _: JsonValue) -> str:
    lines = _HIGHLIGHTED.sub(r"[\1]", str(game.render())).splitlines()
    grid = [line for line in lines if line and not line.startswith("  (")]
    return "\n".join(grid)


def _tell_cliff(game: Game, _: JsonValue) -> str:
    return str(game.render()).strip()


def _tell_taxi(game: Game, state: JsonValue) -> str:
    rest, target = divmod(int(state), 4)  # Gymnasium's number of the state: ((row * 5 + column) * 5 + passenger) * 4
    rest, passenger = divmod(rest, 5)
    row, column = divmod(rest, 5)
    grid = "\n".join(line for line in _ESCAPES.sub("", str(game.render())).splitlines() if line[:1] in ("+", "|"))
    where = f"The taxi is in row {row}, column {column}. The passenger is {_PLACES[passenger]}."
    return f"{grid}\n{where} The destination is {_PLACES[target].removeprefix('at ')}."


def _tell_cards(_: Game, seen: JsonValue) -> str:
    total, dealer, ace = seen
    counted = ", with an ace counted as 11" if ace else ""
    return f"Your cards make {total}{counted}. The dealer shows {'an ace' if dealer == 1 else dealer}."


GAMES: Mapping[str, Rules] = {
    "frozen_lake": Rules(
        "FrozenLake-v1",
        ("left", "down", "right", "up"),
        "Cross the frozen lake from S to G. F is ice, H is a hole; you stand in the brackets.",
        _tell_lake,
        {"map_name": lambda value: value in ("4x4", "8x8"), "desc": _lake_map, "is_slippery": _boolean},
    ),
    "cliff_walking": Rules(
        "CliffWalking-v1",
        ("up", "right", "down", "left"),
        "Walk to T in as few steps as you can. You are x; C is the cliff, which costs 100 and takes you back.",
        _tell_cliff,
        {"is_slippery": _boolean},
    ),
    "taxi": Rules(
        "Taxi-v4",
        ("south", "north", "east", "west", "pickup", "dropoff"),
        "Drive the taxi to the passenger, pick them up and drop them off at the destination, in few steps. Rows are "
        "counted from the top and columns from the left, both from 0; a | is a wall and a : is none.",
        _tell_taxi,
        {"is_rainy": _boolean, "fickle_passenger": _boolean},
    ),
    "blackjack": Rules(
        "Blackjack-v1",
        ("stick", "hit"),
        "Blackjack: come closer to 21 than the dealer, and not above. Face cards count 10.",
        _tell_cards,
        {"natural": _boolean, "sab": _boolean},
        renders=False,
    ),
}


class GameShop:
    """Hands out games. Those with the same options share their tables of transitions, which are their bulk."""

    def __init__(self) -> None:
        self._templates: OrderedDict[bytes, tuple[Game, int | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._templates)

    def game(self, name: str, options: JsonObject) -> tuple[Game, int | None]:
        """Return a game of its own, not reset yet, and after how many steps Gymnasium truncates it (None: never).

        Args:
            name: one of `GAMES`.
            options: arguments that `GAMES` allows for it.
        """
        key = canonical([name, options])
        if key not in self._templates:
            self._templates[key] = _made(GAMES[name], options)
            while len(self._templates) > _MOST_TEMPLATES:
                self._templates.popitem(last=False)
        self._templates.move_to_end(key)
        template, limit = self._templates[key]
        return copy.copy(template), limit  # what a game changes it replaces, down to its random numbers


def _made(rules: Rules, options: JsonObject) -> tuple[Game, int | None]:
    import gymnasium

    mode = "ansi" if rules.renders else None
    made = gymnasium.make(rules.gymnasium_id, render_mode=mode, disable_env_checker=True, **options)
    game: JsonValue = made.unwrapped
    return game, made.spec.max_episode_steps if made.spec else None
