import re

import pytest

from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import JudgeFailedError
from rollmill.openai import text_message
from rollmill.server.sessions import Session
from rollmill.testing import FakeModels, judge_answer
from rollmill_services.resources.math_answer.verifier import MathAnswer, MathAnswerSettings


def saying(*verdicts: bool) -> FakeModels:
    """A judge that gives these verdicts in turn."""
    turns = iter(verdicts)
    return FakeModels(lambda request: judge_answer(request, next(turns)))


async def graded(text: str, models: FakeModels, expected: str = "12") -> Verdict:
    verifier = MathAnswer(MathAnswerSettings(judge="judge", judge_params={"temperature": 0}))
    verifier.models = models
    row = {"question": "How many?", "expected_answer": expected, "response": {"output": [text_message(text)]}}
    return await verifier.verify(Rollout(row), Session("s", {}))


async def test_a_yes_of_the_library_stands_and_no_judge_is_asked() -> None:
    models = saying()

    verdict = await graded(r"\boxed{12}", models)

    assert verdict == Verdict(1.0, {"extracted_answer": "12", "library_reward": 1.0, "judge_evaluations": None})
    assert models.asked == []


async def test_a_no_is_overturned_when_both_orders_say_so() -> None:
    models = saying(True, True)

    verdict = await graded(r"Seven and five: \boxed{13}", models)

    assert (verdict.reward, verdict.details["library_reward"]) == (1.0, 0.0)
    assert [told["verdicts"] for told in verdict.details["judge_evaluations"]] == [[True], [True]]
    prompts = [request["input"][-1]["content"] for request in models.model.requests]
    assert [re.findall(r'(?:First|Second) answer: "(.*)"', prompt) for prompt in prompts] == [
        ["12", "13"],
        ["13", "12"],
    ]
    assert all('Question: "How many?"' in prompt for prompt in prompts)
    assert models.model.requests[0]["temperature"] == 0


@pytest.mark.parametrize("verdicts", [[False], [True, False]])
async def test_a_no_stands_as_soon_as_one_order_says_so(verdicts: list[bool]) -> None:
    models = saying(*verdicts)

    verdict = await graded(r"\boxed{13}", models)

    assert (verdict.reward, verdict.details["library_reward"]) == (0.0, 0.0)
    assert len(verdict.details["judge_evaluations"]) == len(models.asked) == len(verdicts)


async def test_where_there_is_no_answer_there_is_nothing_to_judge() -> None:
    models = saying()

    verdict = await graded("", models)

    assert (verdict.reward, verdict.details["judge_evaluations"]) == (0.0, None)


async def test_a_judge_that_fails_is_a_failure_and_not_a_no() -> None:
    with pytest.raises(JudgeFailedError):
        await graded(r"\boxed{13}", FakeModels(["no idea"]))


async def test_without_a_judge_there_is_no_field_of_its_own() -> None:
    row = {"expected_answer": "12", "response": {"output": [text_message(r"\boxed{13}")]}}

    verdict = await MathAnswer().verify(Rollout(row), Session("s", {}))

    assert verdict == Verdict(0.0, {"extracted_answer": "13", "library_reward": 0.0})
