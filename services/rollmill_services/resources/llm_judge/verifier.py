from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from rollmill.config.settings_refs import FileRef
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError
from rollmill.grading.judge_prompts import EQUIVALENCE, EQUIVALENCE_FIELDS, RUBRIC, RUBRIC_FIELDS, read_prompt
from rollmill.grading.judge_settings import JudgeSettings
from rollmill.grading.judging import Judge, Judgement, evaluations, question_of
from rollmill.grading.objectives import MultiRewardSettings, Objectives
from rollmill.openai.items import as_json_text
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.llm_judge.rubric import Criterion, criteria_of

_MODES = ("equivalence", "rubric")


class LlmJudgeSettings(JudgeSettings):
    """Settings of the `llm_judge` resources service."""

    grading: Literal["equivalence", "rubric"] = "equivalence"
    """How rows are judged that do not say so themselves (`grading_mode`)."""
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
            InputError: `grading_mode`, `expected_answer` or `rubric` is missing or malformed.
        """
        rollout = Rollout(row)
        if self._by_rubric(rollout):
            criteria_of(rollout)
        else:
            rollout.require("expected_answer")

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 or 0.0 for equivalence, the weighted share of the criteria that are met for a rubric.

        Raises:
            InputError: `grading_mode`, `expected_answer` or `rubric` is missing or malformed.
            JudgeFailedError: the judge failed or gave no verdict that can be read.
        """
        judge = self._options.judge_of(self.models)
        if self._by_rubric(rollout):
            return await self._by_criteria(judge, rollout, criteria_of(rollout))
        return await self._by_reference(judge, rollout, as_json_text(rollout.require("expected_answer")))

    def compute_metrics(self, tasks: list[list[Row]]) -> JsonObject:
        """Return how often the judge said the same in both orders.

        `judge_agreement`: share of the questions that were asked in both orders and answered alike, 0 to 1; left out
        when there are none. `judge_questions`: how many there are.
        """
        asked = [row.get("judge_evaluations") for task in tasks for row in task]
        pairs = [pair for judgements in asked for pair in _pairs(judgements)]
        agreement = {"judge_agreement": sum(a == b for a, b in pairs) / len(pairs)} if pairs else {}
        return {**agreement, "judge_questions": len(pairs)}

    def get_key_metrics(self, agent_metrics: JsonObject) -> JsonObject:
        """Choose the means, and how reliable the judge is."""
        own = {name: agent_metrics[name] for name in ("judge_agreement",) if name in agent_metrics}
        return {**super().get_key_metrics(agent_metrics), **own}

    async def _by_reference(self, judge: Judge, rollout: Rollout, reference: str) -> Verdict:
        if not rollout.text.strip():
            return Verdict(0.0, _details([]))
        orders = [(reference, rollout.text), (rollout.text, reference)]
        question = question_of(rollout)
        asked = [
            await judge.ask(self._equivalence, {"question": question, "first": first, "second": second})
            for first, second in orders[: 1 + self._options.twice]
        ]
        return Verdict(float(all(judgement.verdicts[0] for judgement in asked)), _details(asked))

    async def _by_criteria(self, judge: Judge, rollout: Rollout, criteria: list[Criterion]) -> Verdict:
        asked: list[Judgement] = []
        if rollout.text.strip():
            asked.append(await judge.ask(self._rubric, _fields(rollout, criteria), questions=len(criteria)))
        if asked and self._options.twice:
            turned = await judge.ask(self._rubric, _fields(rollout, criteria[::-1]), questions=len(criteria))
            asked.append(Judgement(turned.verdicts[::-1], turned.text, turned.tokens))
        scores = {
            criterion.name: float(bool(asked) and all(judgement.verdicts[number] for judgement in asked))
            for number, criterion in enumerate(criteria)
        }
        weights = {criterion.name: criterion.weight for criterion in criteria}
        return Objectives(weights, MultiRewardSettings(normalise_rewards=True)).verdict(scores, _details(asked))

    def _by_rubric(self, rollout: Rollout) -> bool:
        mode = rollout.field("grading_mode") or self._options.grading
        if mode not in _MODES:
            fault = {"pointer": "/grading_mode", "detail": f"must be one of {', '.join(_MODES)}"}
            raise InputError(f"'grading_mode': {fault['detail']}, got {mode!r:.100}", errors=[fault])
        return bool(mode == "rubric")


def _details(asked: Sequence[Judgement]) -> JsonObject:
    return {
        "judge_calls": len(asked),
        "judge_tokens": sum(judgement.tokens for judgement in asked),
        "judge_evaluations": evaluations(asked),
    }


def _pairs(judgements: JsonValue) -> list[tuple[bool, bool]]:
    """Return both verdicts on each question that was asked twice."""
    if not isinstance(judgements, list) or len(judgements) != 2:
        return []
    first, second = (judgement["verdicts"] for judgement in judgements)
    return list(zip(first, second, strict=True))


def _fields(rollout: Rollout, criteria: list[Criterion]) -> dict[str, str]:
    numbered = "\n".join(f"{number}. {criterion.text}" for number, criterion in enumerate(criteria, start=1))
    reference = rollout.field("expected_answer")
    return {
        "question": question_of(rollout),
        "answer": rollout.text,
        "reference": "" if reference is None else as_json_text(reference),
        "criteria": numbered,
    }
