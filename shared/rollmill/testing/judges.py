import re

from rollmill.contracts.json import JsonObject


def judge_answer(request: JsonObject, *verdicts: bool) -> str:
    """Write what a judge answers to a prompt of `rollmill.grading.judging`: a line for each verdict.

    `FakeModels(lambda request: judge_answer(request, True))` is a judge that says yes to one question.

    Raises:
        ValueError: the request is no such prompt.
    """
    found = re.search(r"^VERDICT-[0-9a-f]{16}", request["input"][-1]["content"], re.M)
    if found is None:
        raise ValueError("the request asks for no verdict")
    numbers = [""] if len(verdicts) == 1 else [f" {number}" for number in range(1, len(verdicts) + 1)]
    lines = [f"{found[0]}{number}: {'YES' if yes else 'NO'}" for number, yes in zip(numbers, verdicts, strict=True)]
    return "\n".join(lines)
