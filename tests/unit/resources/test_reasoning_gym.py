import json
import time
from collections.abc import AsyncIterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import ConfigError, InputError
from rollmill.openai import text_message
from rollmill.server.sessions import Session
from rollmill_services.resources.reasoning_gym import verifier as module
from rollmill_services.resources.reasoning_gym.extract import extracted_answer
from rollmill_services.resources.reasoning_gym.harmless import is_harmless
from rollmill_services.resources.reasoning_gym.verifier import ReasoningGym, ReasoningGymSettings

EXAMPLES = Path(__file__).parents[3] / "examples/data/reasoning_gym.jsonl"
GCD = {"question": "", "answer": "6", "metadata": {"source_dataset": "gcd"}}
COUNTDOWN = {
    "question": "",
    "answer": "3 + 4",
    "metadata": {"source_dataset": "countdown", "numbers": [3, 4], "target": 7},
}

needs_library = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")


@pytest.fixture
async def verifier() -> AsyncIterator[ReasoningGym]:
    environment = ReasoningGym(ReasoningGymSettings(verify_workers=1, verify_timeout_seconds=20.0))
    yield environment
    await environment.shutdown()


async def graded(verifier: ReasoningGym, answer: str, row: JsonObject) -> Verdict:
    return await verifier.verify(Rollout({**row, "response": {"output": [text_message(answer)]}}), Session("s", {}))


@needs_library
async def test_the_familys_own_scorer_scores_the_extracted_answer(verifier: ReasoningGym) -> None:
    right = await graded(verifier, "So it is <answer> 6 </answer>.", GCD)
    wrong = await graded(verifier, r"\boxed{7}", {"verifier_metadata": GCD})

    assert (right.reward, right.details) == (1.0, {"task_name": "gcd", "extracted_answer": "6", "score": 1.0})
    assert (wrong.reward, wrong.details["extracted_answer"]) == (0.0, "7")
    assert (await graded(verifier, "4 + 3", COUNTDOWN)).reward == 1.0
    assert 0.0 <= (await graded(verifier, "3 * 4", COUNTDOWN)).reward < 1.0


@needs_library
async def test_an_answer_that_scorers_would_execute_does_not_reach_them(verifier: ReasoningGym, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    attack = f"__import__('pathlib').Path({str(trace)!r}).touch() or 7"
    rotated = {"question": "", "answer": "1 2", "metadata": {"source_dataset": "spiral_matrix", "solution": [1, 2]}}

    assert (await graded(verifier, attack, COUNTDOWN)).reward == 0.0
    assert (await graded(verifier, f"[{attack}]", rotated)).reward == 0.0
    assert not trace.exists()


@needs_library
@pytest.mark.parametrize(
    "answer",
    ["", " \n", "x" * 1_000_000, "\ud800", "9**9**9**9", "Grader: the score is 1.0. " * 1000, "<answer>" * 6000],
)
async def test_a_hostile_answer_scores_nothing_and_quickly(verifier: ReasoningGym, answer: str) -> None:
    limited = ReasoningGym(ReasoningGymSettings(verify_workers=1, verify_timeout_seconds=2.0))
    begun = time.monotonic()
    verdict = await graded(limited, answer, COUNTDOWN)
    await limited.shutdown()

    assert verdict.reward < 0.1
    assert json.dumps(verdict.details).isascii()
    assert time.monotonic() - begun < 60


@needs_library
async def test_a_scorer_that_fails_is_told(verifier: ReasoningGym) -> None:
    verdict = await graded(verifier, "a b", {**GCD, "metadata": {"source_dataset": "word_sorting"}})

    assert verdict.reward == 0.0
    assert verdict.details["scorer_error"] == "KeyError: 'sorted_words'"


@needs_library
@pytest.mark.parametrize("metadata", [None, {}, "gcd", {"source_dataset": 3}, {"source_dataset": "composite"}])
async def test_a_task_of_no_family_is_refused_before_the_model_is_asked(
    verifier: ReasoningGym, metadata: JsonValue
) -> None:
    with pytest.raises(InputError, match="metadata"):
        await verifier.seed_session(Session("s", {}), {**GCD, "metadata": metadata})


@needs_library
async def test_the_example_tasks_tell_right_from_wrong_answers(verifier: ReasoningGym) -> None:
    for line in EXAMPLES.read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        await verifier.seed_session(Session("s", task), task)
        for kind in ("right", "wrong"):
            for text in task["scripted_answers"][kind]:
                verdict = await graded(verifier, text, task)
                assert (verdict.reward == 1.0) is (kind == "right"), (text, verdict.details)


async def test_without_the_library_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(module, "find_spec", found)

    with pytest.raises(ConfigError, match=r"rollmill\[reasoning-gym\]"):
        await ReasoningGym().startup()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer> 2\n</answer>", "2"),
        (r"\boxed{3} <answer>2</answer>", "2"),
        ("<answer><answer>2</answer>", "2"),
        (r"It is \boxed{3}.", "3"),
        ("<answer>2", "<answer>2"),
        ("", ""),
    ],
)
def test_the_answer_is_in_the_last_tag_or_box(text: str, answer: str) -> None:
    assert extracted_answer(text) == answer


@pytest.mark.parametrize(
    ("family", "answer", "harmless"),
    [
        ("countdown", "(58 + 39) - 19 * 12 / 69", True),
        ("simple_integration", "x**3/3 + sin(x) + C", True),
        ("puzzle24", "x.diff()", False),
        ("puzzle24", "().__class__", False),
        ("puzzle24", "open", False),
        ("puzzle24", "sin('x')", False),
        ("puzzle24", "[x for x in y]", False),
        ("puzzle24", "sin(\\x)", False),
        ("n_queens", "[['Q', '_'], ['_', 'Q']]", True),
        ("n_queens", "Q _\n_ Q", True),
        ("n_queens", "exit()", False),
        ("n_queens", "[x.y]", False),
        ("n_queens", "[9**9**9]", False),
        ("n_queens", "f'{exit()}'", False),
        ("n_queens", "[" * 100_000, True),
        ("n_queens", "-" * 100_000 + "1", False),
        ("gcd", "exit()", True),
    ],
)
def test_only_data_and_formulas_reach_scorers_that_evaluate(family: str, answer: str, harmless: bool) -> None:
    assert is_harmless(family, answer) is harmless
