"""Comparing the answers of one task, two at a time, and what that says about each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeAlias

from rollmill.errors import RollmillError

Schedule: TypeAlias = Literal["circular", "all_pairs"]


@dataclass(frozen=True, slots=True)
class Preference:
    """What came of comparing two answers."""

    first: float
    """Points of the first answer: 1 better, 0.5 as good, 0 worse; the mean of both orders. The second has the rest."""
    agree: bool | None = None
    """Whether the judge said the same in both orders; None when it was asked once, or not at all."""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an answer stands among the others of its task."""

    points: tuple[float, ...]
    """Of each comparison, >= 1 of them."""
    failed: int = 0
    """Comparisons that gave no result."""
    agreement: float | None = None
    """Share of its comparisons in which both orders agreed."""
    tokens: int = 0
    """Output tokens of the judge for its comparisons."""

    @property
    def win_rate(self) -> float:
        """Mean points, 0 to 1."""
        return sum(self.points) / len(self.points)


Compare: TypeAlias = Callable[[str, str], Awaitable[Preference]]
_Pair: TypeAlias = tuple[int, int]
_Results: TypeAlias = dict[_Pair, Preference | RollmillError]


def pairs(count: int, schedule: Schedule, *, known: int = 0) -> list[_Pair]:
    """List who is compared with whom.

    Args:
        count: answers, in their order.
        schedule: `circular`: each with the next one, the last with the first. `all_pairs`: each with every other.
        known: the first so many were compared with each other before; 0 for none.
    """
    every = list(combinations(range(count), 2))
    if schedule == "circular":
        every = [pair for pair in every if pair[1] - pair[0] in (1, count - 1)]
    return [pair for pair in every if pair[1] >= known]


async def rank(
    answers: Sequence[str], compare: Compare, schedule: Schedule, *, known: int = 0
) -> list[Standing | RollmillError | None]:
    """Compare answers with each other.

    Args:
        answers: the answers.
        compare: compares two.
        schedule: who is compared with whom.
        known: see `pairs`.

    Returns:
        For each answer where it stands; the error when all its comparisons failed; None when it had none.
    """
    results: _Results = {}

    async def run(pair: _Pair) -> None:
        try:
            results[pair] = await compare(answers[pair[0]], answers[pair[1]])
        except RollmillError as error:
            results[pair] = error

    async with asyncio.TaskGroup() as group:
        for pair in pairs(len(answers), schedule, known=known):
            group.create_task(run(pair))
    return [_standing(number, results) for number in range(len(answers))]


def _standing(number: int, results: _Results) -> Standing | RollmillError | None:
    own = [(pair, result) for pair, result in sorted(results.items()) if number in pair]
    errors = [result for _, result in own if isinstance(result, RollmillError)]
    decided = [(pair, result) for pair, result in own if isinstance(result, Preference)]
    if not decided:
        return errors[0] if errors else None
    told = [result.agree for _, result in decided if result.agree is not None]
    return Standing(
        tuple(result.first if pair[0] == number else 1 - result.first for pair, result in decided),
        failed=len(errors),
        agreement=sum(told) / len(told) if told else None,
        tokens=sum(result.tokens for _, result in decided),
    )
