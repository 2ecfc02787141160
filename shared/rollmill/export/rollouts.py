"""Rollouts as a table of numbers and short texts, in memory bounded by its number of rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from rollmill.artifacts.reader import read_rollouts
from rollmill.contracts.json import JsonValue
from rollmill.contracts.rows import PARAMS, RESPONSE, Row, RowKey, agent_name, answer_text, content_text, row_key
from rollmill.errors import InputError
from rollmill.metrics.numeric import numeric_fields

Cell: TypeAlias = str | float | None

MOST_CHARACTERS: Final = 2000

_FIRST: Final = ("task", "rollout", "agent")
_LAST: Final = ("prompt_text", "answer_text")


@dataclass(frozen=True, slots=True)
class RolloutSample:
    """Rollouts by task and rollout index; all of them, or a sample when there are too many."""

    columns: list[str]
    """`task`, `rollout`, `agent`, every numeric field, `prompt_text`, `answer_text`."""
    rows: list[list[Cell]]
    """One cell for each column; None for what a rollout lacks."""
    total: int
    """Rollouts of the run."""


@dataclass(frozen=True, slots=True)
class _Short:
    key: RowKey
    agent: str | None
    numbers: dict[str, float]
    prompt: str
    answer: str


def sample_rollouts(path: Path, most: int, *, seed: int = 0) -> RolloutSample:
    """Read a rollouts file once and keep at most `most` rollouts, each with the same probability.

    Args:
        path: finished rollouts; a torn last line is left out.
        most: at least 1.
        seed: of the draw; the same file and seed give the same sample.

    Raises:
        InputError: the file cannot be read, or a line is not a rollout.

    Source: algorithm R of Vitter 1985, "Random sampling with a reservoir".
    """
    kept: list[_Short] = []
    random, total = Random(seed), 0
    for total, row in enumerate(read_rollouts(path), start=1):
        place = total - 1 if total <= most else random.randrange(total)
        if place >= most:
            continue
        if place == len(kept):
            kept.append(_short(path, row))
        else:
            kept[place] = _short(path, row)
    return _table(sorted(kept, key=lambda rollout: rollout.key), total)


def shorten(text: str, most: int = MOST_CHARACTERS) -> str:
    """Take the middle out of a long text: a task begins with its question, and an answer ends with its result."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


def _short(path: Path, row: Row) -> _Short:
    try:
        key = row_key(row)
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    response = row.get(RESPONSE)
    answer = answer_text(response) if isinstance(response, dict) else ""
    return _Short(key, agent_name(row), numeric_fields(row), shorten(_prompt(row)), shorten(answer))


def _prompt(row: Row) -> str:
    """Return what the user asked first."""
    params = row.get(PARAMS)
    given = params.get("input") if isinstance(params, dict) else None
    return given if isinstance(given, str) else next(_user_texts(given), "")


def _user_texts(items: JsonValue) -> Iterator[str]:
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("role") == "user":
            yield content_text(item.get("content"))


def _table(rollouts: list[_Short], total: int) -> RolloutSample:
    taken = {*_FIRST, *_LAST}
    names = list(dict.fromkeys(name for rollout in rollouts for name in rollout.numbers if name not in taken))
    rows: list[list[Cell]] = [
        [*rollout.key, rollout.agent, *map(rollout.numbers.get, names), rollout.prompt, rollout.answer]
        for rollout in rollouts
    ]
    return RolloutSample([*_FIRST, *names, *_LAST], rows, total)
