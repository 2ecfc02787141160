import asyncio
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from rollmill.config.settings_refs import FileRef
from rollmill.contracts.json import JsonObject, canonical
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import PARAMS, ROLLOUT_INDEX, Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError, RollmillError
from rollmill.grading.judge_prompts import COMPARISON, COMPARISON_FIELDS, read_prompt
from rollmill.grading.judge_settings import JudgeSettings
from rollmill.grading.judging import Judge, question_of
from rollmill.openai import normalize_input
from rollmill.openai.items import as_object
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.genrm_compare.cohorts import Candidate, Cohorts, Ranked
from rollmill_services.resources.genrm_compare.comparing import Preference, Schedule, Standing, rank

MOST_PER_TASK = 64


class GenrmCompareSettings(JudgeSettings):
    """Settings of the `genrm_compare` resources service."""

    rollouts_per_task: int = Field(default=4, ge=2, le=MOST_PER_TASK)
    """Rollouts that are compared with each other, where a row does not say so itself."""
    schedule: Schedule = "circular"
    """Each rollout against the next one (`circular`), or against every other (`all_pairs`)."""
    wait_seconds: float = Field(default=240.0, gt=0)
    """Longest wait for the other rollouts of a task; then those that are there are compared."""
    compare_seconds: float = Field(default=240.0, gt=0)
    """Longest time for all comparisons of a task."""
    concurrency: int = Field(default=16, ge=1)
    """Comparisons that are made at once."""
    most_waiting: int = Field(default=4096, ge=2)
    """Rollouts that may wait at once; beyond, callers are asked to come again."""
    longest_answer: int = Field(default=20_000, ge=100)
    """Characters of an answer that are compared; of a longer one, the end."""
    prompt: Annotated[str, FileRef()] = ""
    """YAML file with the texts `system` and `user` instead of the built-in ones."""


class GenrmCompare(Resources):
    """Has a model compare the rollouts of a task with each other; the reward is the share of comparisons won."""

    Settings = GenrmCompareSettings
    reverify_mode: ClassVar[ReverifyMode] = "unknown"  # a reward depends on which others are graded with it
    answer_field: ClassVar[str | None] = None

    def __init__(self, settings: GenrmCompareSettings) -> None:
        super().__init__(settings)
        self._options = settings
        self._prompt = COMPARISON
        self._free = asyncio.Semaphore(settings.concurrency)
        self._cohorts = Cohorts(
            self._rank,
            wait_seconds=settings.wait_seconds,
            rank_seconds=settings.compare_seconds,
            most=settings.most_waiting,
        )

    async def startup(self) -> None:
        """Read the prompt.

        Raises:
            ConfigError: the prompt file is missing or malformed.
        """
        if self._options.prompt:
            self._prompt = read_prompt(Path(self._options.prompt), COMPARISON_FIELDS)

    async def shutdown(self) -> None:
        """End what waits and what is being compared."""
        await self._cohorts.stop()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: `rollouts_per_task` or `principle` is wrong.
        """
        rollout = Rollout(row)
        self._size(rollout)
        _principle(rollout)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 0 to 1: the mean over its comparisons, in each order, of 1 for better, 0.5 for as good, 0 for worse.

        Raises:
            InputError: `rollouts_per_task` or `principle` is wrong.
            JudgeFailedError: the judge failed in all comparisons, or no other rollout of the task came in time.
            OverloadedError: too many rollouts wait.
        """
        size = self._size(rollout)
        candidate = Candidate(
            question_of(rollout),
            _principle(rollout),
            rollout.text[-self._options.longest_answer :].strip(),
            _place(rollout.row),
        )
        return _verdict(await self._cohorts.join(_task_key(rollout, candidate, size), size, candidate), size)

    async def _rank(self, candidates: Sequence[Candidate], known: int) -> list[Standing | RollmillError | None]:
        judge = self._options.judge_of(self.models)
        texts = {"question": candidates[-1].question, "principle": candidates[-1].principle}

        async def compare(first: str, second: str) -> Preference:
            if not (first and second):
                return Preference(_points(bool(first), bool(second)))  # nothing to ask: no answer loses to any
            async with self._free:
                return await self._compare(judge, texts, first, second)

        answers = [candidate.answer for candidate in candidates]
        return await rank(answers, compare, self._options.schedule, known=known)

    async def _compare(self, judge: Judge, texts: dict[str, str], first: str, second: str) -> Preference:
        told = await judge.ask(self._prompt, {**texts, "first": first, "second": second}, questions=2)
        points = _points(*told.verdicts)
        if not self._options.twice:
            return Preference(points, tokens=told.tokens)
        turned = await judge.ask(self._prompt, {**texts, "first": second, "second": first}, questions=2)
        again = 1 - _points(*turned.verdicts)
        return Preference((points + again) / 2, agree=points == again, tokens=told.tokens + turned.tokens)

    def _size(self, rollout: Rollout) -> int:
        size = rollout.field("rollouts_per_task", self._options.rollouts_per_task)
        if isinstance(size, bool) or not isinstance(size, int) or not 2 <= size <= MOST_PER_TASK:
            raise _wrong("rollouts_per_task", f"must be a whole number from 2 to {MOST_PER_TASK}")
        return size


def _points(first_is_better: bool, second_is_better: bool) -> float:
    return (1 + first_is_better - second_is_better) / 2


def _verdict(ranked: Ranked, size: int) -> Verdict:
    standing = ranked.standing
    details: JsonObject = {
        "comparisons": len(standing.points),
        "comparisons_won": sum(points > 0.5 for points in standing.points),
        "comparisons_tied": standing.points.count(0.5),
        "comparisons_failed": standing.failed,
        "compared_with": ranked.size - 1,
        "cohort_complete": ranked.size >= size,
        "judge_tokens": standing.tokens,
    }
    if standing.agreement is not None:
        details["judge_agreement"] = standing.agreement
    return Verdict(standing.win_rate, details)


def _task_key(rollout: Rollout, candidate: Candidate, size: int) -> bytes:
    """Rollouts of one task have the same prompt; those of two runs at once may be compared, which does no harm."""
    asked = normalize_input(as_object(rollout.row.get(PARAMS)).get("input") or "")
    return hashlib.sha256(canonical([asked, candidate.question, candidate.principle, size])).digest()


def _principle(rollout: Rollout) -> str:
    given = rollout.field("principle", "")
    if not isinstance(given, str):
        raise _wrong("principle", "must be a text")
    return given


def _place(row: Row) -> int:
    place = row.get(ROLLOUT_INDEX)
    return place if isinstance(place, int) else 0


def _wrong(name: str, detail: str) -> InputError:
    return InputError(f"{name!r}: {detail}", errors=[{"pointer": f"/{name}", "detail": detail}])
