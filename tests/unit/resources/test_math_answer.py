import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import ConfigError, InputError
from rollmill.server.sessions import Session
from rollmill_services.resources.math_answer.app import create_app
from rollmill_services.resources.math_answer.verifier import MathAnswer, MathAnswerSettings

# One event loop for the file: its worker process takes seconds to start, and belongs to the loop that started it.
pytestmark = pytest.mark.asyncio(loop_scope="module")

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = [loads(line) for line in (REPOSITORY / "examples/data/math.jsonl").read_bytes().splitlines()]
RECORDED = REPOSITORY.parent / "shared/data/recorded/math_with_judge"

needs_library = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="rollmill[math] is missing")


def rollout(text: str, expected: JsonValue) -> Rollout:
    message = {"type": "message", "role": "assistant", "content": text}
    return Rollout({"question": "?", "expected_answer": expected, "response": {"output": [message]}})


async def verdict_of(verifier: MathAnswer, text: str, expected: JsonValue) -> Verdict:
    return await verifier.verify(rollout(text, expected), Session("s", {}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier() -> AsyncIterator[MathAnswer]:
    """A started verifier, shared by the file."""
    math_answer = MathAnswer(MathAnswerSettings(verify_timeout_seconds=60.0, verify_workers=1))
    await math_answer.startup()
    yield math_answer
    await math_answer.shutdown()


EQUAL = [
    (r"\boxed{32}", "32", "32"),
    (r"\boxed{32}", 32, "32"),
    (r"\boxed{ -7 }", "-7", "-7"),
    (r"\boxed{$6$}", r"\(6\)", "6"),
    (r"\boxed{\frac12}", "0.5", "1/2"),
    (r"\boxed{0.5}", 0.5, "1/2"),
    (r"\boxed{1/2}", r"\(\frac{1}{2}\)", "1/2"),
    (r"\boxed{1,234}", "1234", "1234"),
    (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", "sqrt(8)"),
    (r"\boxed{2x+1}", "1+2x", "2*x + 1"),
    (r"\boxed{\{1, 2\}}", r"\{2, 1\}", "{1, 2}"),
    (r"\boxed{x=5}", "5", "Eq(x, 5)"),
    (r"\boxed{50\%}", "0.5", "50*(1/100)"),
    (r"\boxed{5\text{ cm}}", "5", "5"),
    (r"\boxed{1} no, \boxed{2}", "2", "2"),
    (r"The final answer is $\frac{3}{4}$.", "0.75", "3/4"),
    ("so there are 12", "12", "12"),
    (r"\boxed{\text{blue}}", r"\text{blue}", "blue"),
]


@needs_library
@pytest.mark.parametrize(("text", "expected", "extracted"), EQUAL)
async def test_an_equivalent_answer_is_right(
    verifier: MathAnswer, text: str, expected: JsonValue, extracted: str
) -> None:
    verdict = await verdict_of(verifier, text, expected)

    assert verdict == Verdict(1.0, {"extracted_answer": extracted, "library_reward": 1.0})


@needs_library
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{33}", "32"),
        (r"\boxed{-32}", "32"),
        (r"\boxed{\frac{83}{499}}", r"\(\frac{333}{1997}\)"),
        (r"\boxed{2} no, \boxed{1}", "2"),
        (r"\boxed{2x}", "2x+1"),
        (r"\boxed{red}", r"\text{blue}"),
        (r"\boxed{}", "5"),
        ("", "5"),
        ("I do not know", "5"),
        (r"\boxed{5", "6"),
        ("\\boxed{" + "9" * 5_000 + "}", "5"),
    ],
)
async def test_another_answer_is_wrong(verifier: MathAnswer, text: str, expected: str) -> None:
    verdict = await verdict_of(verifier, text, expected)

    assert verdict.reward == verdict.details["library_reward"] == 0.0


@needs_library
@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{[[[[}",
        r"\boxed{((((x}",
        "\\boxed{" * 140_000,
        "\\boxed{" + "(" * 90_000 + "}",
        "x" * 1_000_000,
        "\\boxed{\0}",
        "\\boxed{line\nline}",
        r"\boxed{\frac{1}{0}}",
        r"\boxed{10^{100000}}",
        r"\boxed{__import__('os').getcwd()}",
    ],
)
async def test_a_hostile_answer_is_wrong_and_the_next_one_is_served(verifier: MathAnswer, text: str) -> None:
    assert (await verdict_of(verifier, text, "7")).reward == 0.0
    assert (await verdict_of(verifier, r"\boxed{\frac{14}{2}}", "7")).reward == 1.0


@needs_library
async def test_an_answer_that_takes_too_long_is_wrong_and_its_process_is_replaced() -> None:
    endless = "{" * 40 + "x" + "}" * 40
    math_answer = MathAnswer(MathAnswerSettings(verify_timeout_seconds=0.5, verify_workers=1))
    try:
        wrong = await verdict_of(math_answer, rf"\boxed{{{endless}}}", "7")
        the_same = await verdict_of(math_answer, rf"\boxed{{{endless}}}", endless)
    finally:
        await math_answer.shutdown()

    details = {"extracted_answer": endless, "library_reward": 0.0, "verify_timed_out": True}
    assert wrong == Verdict(0.0, details)
    assert the_same == Verdict(1.0, {**details, "library_reward": 1.0})


async def test_integers_are_compared_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill_services.resources.math_answer.verifier.find_spec", lambda _: None)
    math_answer = MathAnswer()

    assert (await verdict_of(math_answer, r"\boxed{12}", "12")).reward == 1.0
    assert (await verdict_of(math_answer, r"\boxed{12}", "13")).reward == 0.0


async def test_a_missing_library_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill_services.resources.math_answer.verifier.find_spec", lambda _: None)
    math_answer = MathAnswer()

    with pytest.raises(ConfigError, match=r"rollmill\[math\]"):
        await math_answer.startup()
    with pytest.raises(ConfigError, match=r"rollmill\[math\]"):
        await verdict_of(math_answer, r"\boxed{x}", "y")


@pytest.mark.parametrize("value", [None, "", " ", "$$", True, ["1"], {}])
async def test_a_missing_or_wrong_expected_answer_is_an_error_that_names_it(value: JsonValue) -> None:
    with pytest.raises(InputError, match="expected_answer") as caught:
        await verdict_of(MathAnswer(), r"\boxed{1}", value)

    (fault,) = caught.value.extensions["errors"]
    assert fault["pointer"] == "/expected_answer"


async def test_a_very_long_answer_is_compared_as_text() -> None:
    long = "+".join(["x"] * 3_000)

    assert (await verdict_of(MathAnswer(), rf"\boxed{{{long}}}", long)).reward == 1.0
    assert (await verdict_of(MathAnswer(), rf"\boxed{{{long}}}", long + "+1")).reward == 0.0


@pytest.mark.parametrize("response", [None, {}, {"output": [{"type": "reasoning", "summary": []}]}])
async def test_a_response_without_text_is_no_answer(response: JsonValue) -> None:
    row = {"expected_answer": "1", "response": response}

    verdict = await MathAnswer().verify(Rollout(row), Session("s", {}))

    assert verdict == Verdict(0.0, {"extracted_answer": None, "library_reward": 0.0})


@needs_library
@pytest.mark.parametrize("task", EXAMPLES, ids=lambda task: str(task["expected_answer"]))
async def test_each_bundled_task_accepts_its_answer_and_rejects_another(verifier: MathAnswer, task: JsonObject) -> None:
    expected = task["expected_answer"]

    assert (await verdict_of(verifier, rf"\boxed{{{expected}}}", expected)).reward == 1.0
    assert (await verdict_of(verifier, r"\boxed{wrong}", expected)).reward == 0.0
    assert (await verdict_of(verifier, rf"\boxed{{{expected}+1}}", expected)).reward == 0.0


@needs_library
@pytest.mark.recorded
@pytest.mark.skipif(not RECORDED.is_dir(), reason="no recorded rollouts here")
async def test_the_verdicts_equal_the_recorded_ones(verifier: MathAnswer) -> None:
    tasks = [json.loads(line) for line in (RECORDED / "tasks.jsonl").read_text().splitlines()]
    rollouts = [json.loads(line) for line in (RECORDED / "rollouts.jsonl").read_text().splitlines()]
    by_input = {task["responses_create_params"]["input"][0]["content"]: task for task in tasks}
    for row in rollouts:
        task = by_input[row["responses_create_params"]["input"][0]["content"]]
        verdict = await verifier.verify(Rollout({**task, "response": row["response"]}), Session("s", {}))
        assert verdict.details == {key: row[key] for key in ("extracted_answer", "library_reward")}


async def test_its_verdicts_need_only_the_row() -> None:
    assert MathAnswer.reverify_mode == "stateless"
    assert create_app(MathAnswerSettings(name="math_answer")).title
