from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import FileRef, ServiceRef
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import PARAMS, Row, content_text
from rollmill.contracts.services import ReverifyMode
from rollmill.grading.judging import Judge, Judgement
from rollmill.openai import normalize_input
from rollmill.openai.items import as_object
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.llm_judge.prompts import (
    EQUIVALENCE,
    EQUIVALENCE_FIELDS,
    RUBRIC,
    RUBRIC_FIELDS,
    read_prompt,
)
from rollmill_services.resources.llm_judge.rubric import Criterion, criteria_of


class LlmJudgeSettings(ServiceSettings):
    """Settings of the `llm_judge` resources service."""

    judge: Annotated[str, ServiceRef("model")] = Field(min_length=1)
    """The model service that judges; use another one than the policy's."""
    grading: Literal["equivalence", "rubric"] = "equivalence"
    """How rows are judged that do not say so themselves (`grading_mode`)."""
    twice: bool = True
    """Ask once more with the order turned round; only what both verdicts say counts."""
    attempts: int = Field(default=3, ge=1, le=10)
    """How often the judge is asked for a verdict that can be read."""
    params: JsonObject = Field(default_factory=dict)
    """Sampling parameters of the judge's requests."""
    equivalence_prompt: Annotated[str, FileRef()] = ""
    """YAML file with the texts `system` and `user` instead of the built-in ones."""
    rubric_prompt: Annotated[str, FileRef()] = ""
    """Likewise."""


class LlmJudge(Resources):
    """Has a model judge answers: whether they say what the reference says, or which criteria they meet."""

    Settings = LlmJudgeSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"
    answer_field: ClassVar[str | None] = None  # an answer is a text; two are seldom the same

    def __init__(self, settings: LlmJudgeSettings) -> None:
        super().__init__(settings)
        self._options = settings
        self._equivalence, self._rubric = EQUIVALENCE, RUBRIC

    async def startup(self) -> None:
        """Read the prompts.

        Raises:
            ConfigError: a prompt file is missing or malformed.
        """
        if self._options.equivalence_prompt:
            self._equivalence = read_prompt(Path(self._options.equivalence_prompt), EQUIVALENCE_FIELDS)
        if self._options.rubric_prompt:
            self._rubric = read_prompt(Path(self._options.rubric_prompt), RUBRIC_FIELDS)

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: `expected_answer` or `rubric` is missing or malformed.
        """
        rollout = Rollout(row)
        if self._by_rubric(rollout):
            criteria_of(rollout)
        else:
            rollout.require("expected_answer")

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 or 0.0 for equivalence, the weighted share of the criteria that are met for a rubric.

        Raises:
            InputError: `expected_answer` or `rubric` is missing or malformed.
            JudgeFailedError: the judge failed or gave no verdict that can be read.
        """
        judge = Judge(self.models, self._options.judge, params=self._options.params, attempts=self._options.attempts)
        if self._by_rubric(rollout):
            return await self._by_criteria(judge, rollout, criteria_of(rollout))
        reference = _text(rollout, "expected_answer")
        if not rollout.text.strip():
            return Verdict(0.0, {"judge_calls": 0})
        orders = [(reference, rollout.text), (rollout.text, reference)][: 1 + self._options.twice]
        asked = [
            await judge.ask(self._equivalence, {"question": _question(rollout), "first": first, "second": second})
            for first, second in orders
        ]
        return Verdict(float(all(judgement.verdicts[0] for judgement in asked)), _details(asked))

    async def _by_criteria(self, judge: Judge, rollout: Rollout, criteria: list[Criterion]) -> Verdict:
        if not rollout.text.strip():
            return Verdict(0.0, {"judge_calls": 0}, {criterion.name: 0.0 for criterion in criteria})
        asked: list[Judgement] = []
        for order in (criteria, criteria[::-1])[: 1 + self._options.twice]:
            judgement = await judge.ask(self._rubric, _fields(rollout, order), questions=len(order))
            turned = order is not criteria
            verdicts = judgement.verdicts[::-1] if turned else judgement.verdicts
            asked.append(Judgement(verdicts, judgement.text, judgement.tokens))
        met = [all(verdicts) for verdicts in zip(*(judgement.verdicts for judgement in asked), strict=True)]
        total = sum(criterion.weight for criterion in criteria)
        reward = sum(criterion.weight for criterion, is_met in zip(criteria, met, strict=True) if is_met) / total
        components = {criterion.name: float(is_met) for criterion, is_met in zip(criteria, met, strict=True)}
        return Verdict(reward, _details(asked), components)

    def _by_rubric(self, rollout: Rollout) -> bool:
        mode = rollout.field("grading_mode")
        return (mode or self._options.grading) == "rubric"


def _details(asked: list[Judgement]) -> JsonObject:
    details: JsonObject = {
        "judge_calls": len(asked),
        "judge_tokens": sum(judgement.tokens for judgement in asked),
        "judge_evaluations": [{"verdicts": list(judgement.verdicts), "text": judgement.text} for judgement in asked],
    }
    if len(asked) > 1:  # its mean over rollouts is the rate of agreement
        details["judges_agree"] = asked[0].verdicts == asked[1].verdicts
    return details


def _fields(rollout: Rollout, criteria: list[Criterion]) -> dict[str, str]:
    numbered = "\n".join(f"{number}. {criterion.text}" for number, criterion in enumerate(criteria, start=1))
    reference = "" if rollout.field("expected_answer") is None else _text(rollout, "expected_answer")
    return {"question": _question(rollout), "answer": rollout.text, "reference": reference, "criteria": numbered}


def _text(rollout: Rollout, name: str) -> str:
    value = rollout.require(name)
    return value if isinstance(value, str) else str(value)


def _question(rollout: Rollout) -> str:
    """The row's `question`, or what its last user message says."""
    given = rollout.field("question")
    if isinstance(given, str):
        return given
    items = normalize_input(as_object(rollout.row.get(PARAMS)).get("input") or "")
    said = [content_text(item.get("content")) for item in items if item.get("role") == "user"]
    return said[-1] if said else ""
