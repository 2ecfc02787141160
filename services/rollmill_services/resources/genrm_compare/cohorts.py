"""Rollouts of one task that wait for each other, so that they can be compared.

A cohort is ranked when all its rollouts have come, or when its time is over with those that came. Then a later one is
compared with the answers of those, as long as they are kept. One that leaves before is not waited for.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from rollmill.context import get_context, set_context
from rollmill.errors import JudgeFailedError, NotReadyError, OverloadedError, RollmillError
from rollmill_services.resources.genrm_compare.comparing import Standing

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rollout's answer, as it is compared."""

    question: str
    principle: str
    answer: str
    place: int = 0
    """Its rollout index: candidates are compared in this order, whichever came first."""


Rank: TypeAlias = Callable[[Sequence[Candidate], int], Awaitable[list[Standing | RollmillError | None]]]
"""Compares candidates; the first so many of them are known and were compared with each other before."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate's place in its cohort."""

    standing: Standing
    size: int
    """Candidates that there were, itself included."""


@dataclass(slots=True, eq=False)
class _Cohort:
    size: int
    timer: asyncio.TimerHandle
    waiting: dict[asyncio.Future[Ranked], Candidate] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Earlier:
    """The candidates of a cohort that was ranked before all had come."""

    candidates: tuple[Candidate, ...]
    missing: int
    until: float
    """When they are forgotten, on the loop's clock."""


class Cohorts:
    """The cohorts of one process.

    Args:
        rank: compares candidates.
        wait_seconds: longest wait for the others, from the first one's arrival; half the time that a caller has left
            when that is less, so that the other half is there for the comparisons.
        rank_seconds: longest time for the comparisons of a cohort.
        most: most candidates that are held at once.
    """

    def __init__(self, rank: Rank, *, wait_seconds: float, rank_seconds: float, most: int) -> None:
        self._rank = rank
        self._wait_seconds = wait_seconds
        self._rank_seconds = rank_seconds
        self._most = most
        self._open: dict[bytes, _Cohort] = {}
        self._earlier: OrderedDict[bytes, _Earlier] = OrderedDict()
        self._at_work: set[asyncio.Task[None]] = set()
        self._held = 0

    def __len__(self) -> int:
        """Candidates that wait for their verdicts."""
        return self._held

    async def join(self, key: bytes, size: int, candidate: Candidate) -> Ranked:
        """Wait for the others of a task, and return how the candidate compares with them.

        Args:
            key: the task.
            size: how many there will be, >= 2.
            candidate: the rollout's answer.

        Raises:
            JudgeFailedError: all comparisons failed, or no other candidate came.
            OverloadedError: too many candidates wait, or the service stops.
        """
        if self._held >= self._most:
            raise OverloadedError(f"{self._held} rollouts wait to be compared", retry_after=2.0)
        result: asyncio.Future[Ranked] = asyncio.get_running_loop().create_future()
        self._held += 1
        try:
            earlier = self._take_earlier(key)
            if earlier is not None:
                self._compare_with(key, earlier, candidate, result)
            else:
                self._enter(key, size, candidate, result)
            return await result
        finally:  # also when the caller has left
            self._held -= 1
            self._leave(key, result)

    async def stop(self) -> None:
        """End everything; who waits is told to come again."""
        for cohort in self._open.values():
            cohort.timer.cancel()
            for result in cohort.waiting:
                _settle(result, NotReadyError("the service stops"))
        self._open.clear()
        for task in self._at_work:
            task.cancel()
        if self._at_work:
            await asyncio.wait(self._at_work)

    def _enter(self, key: bytes, size: int, candidate: Candidate, result: asyncio.Future[Ranked]) -> None:
        loop = asyncio.get_running_loop()
        left = get_context().remaining()
        ends = loop.time() + (self._wait_seconds if left is None else min(self._wait_seconds, left / 2))
        cohort = self._open.get(key)
        if cohort is None:
            cohort = self._open[key] = _Cohort(size, loop.call_at(ends, self._close, key))
        elif ends < cohort.timer.when():
            cohort.timer.cancel()
            cohort.timer = loop.call_at(ends, self._close, key)
        cohort.waiting[result] = candidate
        if len(cohort.waiting) >= cohort.size:
            self._close(key)

    def _leave(self, key: bytes, result: asyncio.Future[Ranked]) -> None:
        cohort = self._open.get(key)
        if cohort is None or result not in cohort.waiting:
            return
        del cohort.waiting[result]
        if not cohort.waiting:
            cohort.timer.cancel()
            del self._open[key]

    def _close(self, key: bytes) -> None:
        cohort = self._open.pop(key)
        cohort.timer.cancel()
        entered = sorted(cohort.waiting.items(), key=lambda entry: entry[1].place)
        candidates = [candidate for _, candidate in entered]
        self._keep(key, candidates, cohort.size - len(candidates))
        self._start(key, candidates, 0, [result for result, _ in entered])

    def _compare_with(
        self, key: bytes, earlier: _Earlier, candidate: Candidate, result: asyncio.Future[Ranked]
    ) -> None:
        candidates = [*earlier.candidates, candidate]
        self._keep(key, candidates, earlier.missing - 1)
        self._start(key, candidates, len(earlier.candidates), [result])

    def _keep(self, key: bytes, candidates: list[Candidate], missing: int) -> None:
        if missing > 0:
            until = asyncio.get_running_loop().time() + self._wait_seconds
            self._earlier[key] = _Earlier(tuple(candidates), missing, until)
        while sum(len(earlier.candidates) for earlier in self._earlier.values()) > self._most:
            self._earlier.popitem(last=False)

    def _take_earlier(self, key: bytes) -> _Earlier | None:
        now = asyncio.get_running_loop().time()
        for old in [key for key, earlier in self._earlier.items() if earlier.until < now]:
            del self._earlier[old]
        return self._earlier.pop(key, None)

    def _expect_again(self, key: bytes, candidates: list[Candidate], failed: list[Candidate]) -> None:
        """Keep the other candidates for those that could not be compared, in case that they are graded once more."""
        earlier = self._earlier.pop(key, None)
        known = candidates if earlier is None else earlier.candidates
        others = [candidate for candidate in known if not any(candidate is one for one in failed)]
        if others:
            self._keep(key, others, len(failed) + (earlier.missing if earlier else 0))

    def _start(
        self, key: bytes, candidates: list[Candidate], known: int, results: list[asyncio.Future[Ranked]]
    ) -> None:
        """Rank in a task that no caller owns: it goes on when one of them leaves."""
        task = asyncio.create_task(self._settle_all(key, candidates, known, results))
        self._at_work.add(task)
        task.add_done_callback(self._at_work.discard)

    async def _settle_all(
        self, key: bytes, candidates: list[Candidate], known: int, results: list[asyncio.Future[Ranked]]
    ) -> None:
        set_context(get_context()._replace(deadline=None).sooner(self._rank_seconds))
        outcomes: list[Ranked | RollmillError]
        try:
            standings = (await self._rank(candidates, known))[known:]
            outcomes = [self._outcome(standing, len(candidates)) for standing in standings]
            failed = [c for c, s in zip(candidates[known:], standings, strict=True) if isinstance(s, RollmillError)]
            if failed:
                self._expect_again(key, candidates, failed)
        except asyncio.CancelledError:
            outcomes = [NotReadyError("the service stops")] * len(results)
        except Exception:
            log.exception("comparison_broken")
            outcomes = [RollmillError("the comparison broke; the log of the service says why")] * len(results)
        for result, outcome in zip(results, outcomes, strict=True):
            _settle(result, outcome)

    def _outcome(self, standing: Standing | RollmillError | None, size: int) -> Ranked | RollmillError:
        if standing is None:
            detail = (
                f"no other rollout of this task came within {self._wait_seconds:g} s, so there is nothing to compare"
            )
            return JudgeFailedError(detail, boundary="resources", retryable=False)
        return standing if isinstance(standing, RollmillError) else Ranked(standing, size)


def _settle(result: asyncio.Future[Ranked], outcome: Ranked | RollmillError) -> None:
    if result.done():  # its caller has left
        return
    if isinstance(outcome, RollmillError):
        result.set_exception(type(outcome)(outcome.detail, **outcome.extensions))  # one for each who raises it
    else:
        result.set_result(outcome)
