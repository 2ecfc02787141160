from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import ServiceRef
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConfigError, InputError
from rollmill.grading.judging import Judge
from rollmill.grading.serving import LIMIT
from rollmill.grading.text import without_surrogates
from rollmill.grading.workers import WorkerPool
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.math_answer.answers import (
    LONGEST_ANSWER,
    final_answer,
    has_box,
    plain_integer,
    same_text,
    unframed,
)
from rollmill_services.resources.math_answer.judged import second_opinion
from rollmill_services.resources.math_answer.rewrite import other_forms
from rollmill_services.resources.math_answer.units import in_one_unit, quantity

_MATH_WORKER = Path(__file__).with_name("math_worker.py")


class MathAnswerSettings(ServiceSettings):
    """Settings of the `math_answer` resources service."""

    verify_timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest comparison of one answer; beyond it the answer counts as wrong, unless it is the expected text."""
    verify_workers: int = Field(default=2, ge=1)
    """Most processes that compare answers."""
    judge: Annotated[str, ServiceRef("model")] = ""
    """A model service that may overturn a no; empty for none."""
    judge_params: JsonObject = Field(default_factory=dict)
    """Sampling parameters of the judge's requests."""


class MathAnswer(Resources):
    """Mathematics with a known answer: equivalence of expressions, as math-verify sees it.

    Comparisons run in worker processes: symbolic mathematics on a hostile answer can take for ever, and
    math-verify's own time limits work in a main thread only.
    """

    Settings = MathAnswerSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"

    def __init__(self, settings: MathAnswerSettings | None = None) -> None:
        super().__init__(settings)
        limits = settings or MathAnswerSettings()
        self._judge, self._judge_params = limits.judge, limits.judge_params
        self._timeout_seconds = limits.verify_timeout_seconds
        self._workers = WorkerPool(
            _MATH_WORKER, count=limits.verify_workers, timeout_seconds=limits.verify_timeout_seconds
        )

    async def startup(self) -> None:
        """Start the first worker.

        Raises:
            ConfigError: math-verify is not installed.
            NotReadyError: the worker did not start.
        """
        _require_library()
        await self._workers.start()

    async def shutdown(self) -> None:
        """End the workers."""
        await self._workers.stop()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: `expected_answer` is missing, or neither text nor a number.
        """
        _expected(Rollout(row))

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the final answer is equivalent to `expected_answer`.

        `extracted_answer` is what was compared, in SymPy's form where it was read as mathematics, else as written;
        null when there is no answer. `library_reward` is the library's own verdict; the reward differs from it where
        units decide, or a form that the library does not read.

        Raises:
            InputError: `expected_answer` is missing, or neither text nor a number.
            ConfigError: math-verify is not installed.
            JudgeFailedError: the judge failed, or gave no verdict that can be read.
        """
        verdict = await self._by_library(rollout)
        if not self._judge:
            return verdict
        judge = Judge(self.models, self._judge, params=self._judge_params)
        return await second_opinion(judge, rollout, verdict, expected=_expected(rollout))

    async def _by_library(self, rollout: Rollout) -> Verdict:
        expected, text = _expected(rollout), without_surrogates(rollout.text)
        answer = final_answer(text)
        if answer is None:
            return _verdict(False, None)
        left, right = plain_integer(answer), plain_integer(expected)
        if left is not None and right is not None:
            return _verdict(left == right, answer)  # most answers are such, and need no process
        if len(answer) > LONGEST_ANSWER:
            return _verdict(same_text(answer, expected), answer[:LONGEST_ANSWER])
        return await self._compare(expected, answer, boxed=has_box(text))

    async def _compare(self, expected: str, answer: str, *, boxed: bool) -> Verdict:
        reply = await self._ask(expected, rf"\boxed{{{answer}}}" if boxed else answer)
        same = same_text(answer, expected)
        as_written = answer if boxed or same else None  # prose without any mathematics in it is no answer
        if reply is None:
            verdict = _verdict(same, as_written)
            return Verdict(verdict.reward, {**verdict.details, "verify_timed_out": True})
        library = bool(reply["equal"]) or same
        equal = library if same or not boxed else await self._overruled(expected, answer, library=library)
        return _verdict(equal, reply["extracted"] or as_written, library=library)

    async def _overruled(self, expected: str, answer: str, *, library: bool) -> bool:
        """Say whether two answers are equal where math-verify, which drops units, does not have the last word."""
        left, right = quantity(expected), quantity(answer)
        if left and right and (left.kind, left.size) != (right.kind, right.size):
            pair = in_one_unit(left, right)
        elif library:
            return True
        else:
            pair = other_forms(expected, answer)
        reply = await self._ask(pair[0], rf"\boxed{{{pair[1]}}}") if pair else None
        return bool(reply and reply["equal"])

    async def _ask(self, expected: str, answer: str) -> JsonObject | None:
        _require_library()
        return await self._workers.ask({"expected": expected, "answer": answer, LIMIT: self._timeout_seconds})


def _verdict(equal: bool, answer: str | None, *, library: bool | None = None) -> Verdict:
    return Verdict(
        float(equal), {"extracted_answer": answer, "library_reward": float(equal if library is None else library)}
    )


def _expected(rollout: Rollout) -> str:
    value = rollout.require("expected_answer")
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not (text := unframed(str(value))):
        fault = {"pointer": "/expected_answer", "detail": "must be text or a number"}
        raise InputError("'expected_answer' must be text or a number", errors=[fault])
    return text


def _require_library() -> None:
    if find_spec("math_verify") is None:
        raise ConfigError("math_answer needs math-verify; install it with: pip install 'rollmill[math]'")
