"""Units, intervals, sets, matrices, and spellings that math-verify does not read."""

import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.openai import text_message
from rollmill.server.sessions import Session
from rollmill.testing import asgi_client
from rollmill_services.resources.math_answer.app import create_app
from rollmill_services.resources.math_answer.rewrite import as_interval, rewritten
from rollmill_services.resources.math_answer.units import quantity
from rollmill_services.resources.math_answer.verifier import MathAnswer, MathAnswerSettings

# One event loop for the file: its worker process takes seconds to start, and belongs to the loop that started it.
pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="rollmill[math] is missing"),
]

EXAMPLES = Path(__file__).parents[3] / "examples/data/math_forms.jsonl"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier() -> AsyncIterator[MathAnswer]:
    math_answer = MathAnswer(MathAnswerSettings(verify_timeout_seconds=60.0, verify_workers=1))
    yield math_answer
    await math_answer.shutdown()


async def verdict_of(verifier: MathAnswer, answer: str, expected: str) -> Verdict:
    row = {"expected_answer": expected, "response": {"output": [text_message(rf"\boxed{{{answer}}}")]}}
    return await verifier.verify(Rollout(row), Session("s", {}))


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        (r"5 \text{ cm}", "5", 1.0),
        ("5", r"5 \text{ cm}", 1.0),
        ("5 kg", "5 cm", 0.0),
        ("5 cm", "5 cm", 1.0),
        (r"500\,\mathrm{cm}", r"5 \text{ m}", 1.0),
        (r"5 \text{ cm}", r"5 \text{ m}", 0.0),
        (r"1 \text{ liter}", r"1000 \text{ cm}^3", 1.0),
        (r"1 \text{ m}^2", r"10{,}000 \text{ cm}^{2}", 1.0),
        (r"1 \text{ m}^2", r"1 \text{ m}", 0.0),
        (r"36 \text{ km/h}", r"10 \text{ meters per second}", 1.0),
        (r"\frac{1}{2} \text{ hour}", r"30 \text{ min}", 1.0),
        (r"3 \text{ apples}", r"3 \text{ pears}", 1.0),  # not known here: the number decides
    ],
)
async def test_units_count_where_both_sides_have_one(
    verifier: MathAnswer, answer: str, expected: str, reward: float
) -> None:
    assert (await verdict_of(verifier, answer, expected)).reward == reward


async def test_the_librarys_own_verdict_is_told_beside_ours(verifier: MathAnswer) -> None:
    stricter = await verdict_of(verifier, "5 kg", "5 cm")
    milder = await verdict_of(verifier, "90°", "90")

    assert (stricter.reward, stricter.details["library_reward"]) == (0.0, 1.0)
    assert (milder.reward, milder.details["library_reward"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("(1, 2]", "(1,2]", 1.0),
        ("[1, 2]", "(1,2]", 0.0),
        (r"1 < x \le 2", "(1,2]", 1.0),
        (r"2 \geq x > 1", "(1,2]", 1.0),
        (r"1 \le x \le 2", "(1,2]", 0.0),
        ("x > 1", r"(1, \infty)", 1.0),
        ("x ≥ 1", r"[1, \infty)", 1.0),
        (r"(-\infty, 3)", r"x \lt 3", 1.0),
        ("y < 5", "x < 5", 0.0),
        (r"(3,4) \cup (1,2)", r"(1,2) \cup (3,4)", 1.0),
        (r"\{3, 1, 2\}", r"\{1,2,3\}", 1.0),
        (r"\{1, 2\}", r"\{1,2,3\}", 0.0),
        (r"\begin{bmatrix}1 & 2\\3 & 4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", 1.0),
        (r"\begin{bmatrix}1 & 2\\3 & 5\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", 0.0),
        ("(2, 1)", "(1, 2)", 0.0),
        (r"0.\overline{3}", r"\frac13", 1.0),
        (r"0.1\overline{6}", r"\frac16", 1.0),
        ("3e5", "300000", 1.0),
        ("7.", "7", 1.0),
    ],
)
async def test_intervals_sets_matrices_and_other_spellings_are_compared(
    verifier: MathAnswer, answer: str, expected: str, reward: float
) -> None:
    assert (await verdict_of(verifier, answer, expected)).reward == reward


@pytest.mark.parametrize("answer", ["\ud800", "<" * 3000, "1<" * 1500, "5" + " " * 3000 + "cm", r"0.\overline{" * 300])
async def test_a_strange_answer_is_wrong(verifier: MathAnswer, answer: str) -> None:
    assert (await verdict_of(verifier, answer, "(1,2]")).reward == 0.0


async def test_the_example_tasks_tell_right_from_wrong_answers(verifier: MathAnswer) -> None:
    for line in EXAMPLES.read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        for kind, reward in (("right", 1.0), ("wrong", 0.0)):
            for text in task["scripted_answers"][kind]:
                rollout = Rollout({**task, "response": {"output": [text_message(text)]}})
                verdict = await verifier.verify(rollout, Session("s", {}))
                assert verdict.reward == reward, (text, task["expected_answer"])


@pytest.mark.parametrize("row", [{}, {"expected_answer": None}, {"expected_answer": []}, {"expected_answer": "$ $"}])
async def test_a_task_without_its_answer_is_refused_before_the_model_is_asked(row: dict[str, object]) -> None:
    async with asgi_client(create_app(MathAnswerSettings(verify_workers=1))) as client:
        answer = await client.post("/seed_session", json={"verifier_metadata": row})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/expected_answer"


@pytest.mark.parametrize("text", ["5", "5x", r"\text{cm}", "cm", "x cm", "3 apples", "1 S", r"5 \text{ square}"])
async def test_what_is_no_known_unit_is_none(text: str) -> None:
    assert quantity(text) is None


async def test_expressions_that_need_it_are_rewritten_and_others_are_not() -> None:
    assert rewritten(r"\frac{1}{2} x^2") == r"\frac{1}{2} x^2"
    assert rewritten("1.5e-3") == r"1.5\times 10^{-3}"
    assert rewritten("2.e") == "2.e"
    for text in ("x = 1", "1 < 2", "1 < x > 2", "x < y < z < w", "x"):
        assert as_interval(text) is None
