"""The judge's part in a verdict: it may overturn a no, never a yes."""

from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.grading.judge_prompts import EQUIVALENCE
from rollmill.grading.judging import Judge, Judgement, evaluations, question_of
from rollmill_services.resources.math_answer.answers import final_answer


async def second_opinion(judge: Judge, rollout: Rollout, verdict: Verdict, *, expected: str) -> Verdict:
    """Ask a judge whether an answer that the library found wrong is right after all.

    It is right when the judge says so with the answers in either order. `judge_evaluations` has what it said; null when
    it was not asked, because the library said yes or there is no answer.

    Raises:
        JudgeFailedError: it failed, or gave no verdict that can be read.
    """
    answer = None if verdict.reward else final_answer(rollout.text)
    if answer is None:
        return Verdict(verdict.reward, {**verdict.details, "judge_evaluations": None})
    asked: list[Judgement] = []
    for first, second in ((expected, answer), (answer, expected)):
        texts = {"question": question_of(rollout), "first": first, "second": second}
        asked.append(await judge.ask(EQUIVALENCE, texts))
        if not asked[-1].verdicts[0]:
            break
    overturned = all(judgement.verdicts[0] for judgement in asked)
    return Verdict(float(overturned), {**verdict.details, "judge_evaluations": evaluations(asked)})
