import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

from rollmill.artifacts.reader import iter_lines, parse_line
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import PARAMS, Row, field
from rollmill.errors import ConfigError, InputError
from rollmill.openai import normalize_input
from rollmill.openai.items import as_json_text, as_object
from rollmill_services.models.scripted.draws import Draws, input_digest

SCRIPTED = "scripted_answers"
"""Row field `{"right": [answer, ...], "wrong": [answer, ...]}`; an answer is a text, or calls and maybe a text."""
_NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
_THOUGHTS = (
    "Let me read the question once more.",
    "First I write down what is given.",
    "That leaves one case to look at.",
    "I check this step with a simpler case.",
    "The other way of looking at it leads to the same place.",
    "This does not fit yet, so I go back one step.",
    "Now the parts can be put together.",
    "I compare this with what was asked for.",
)
_UNBOXED_SHARE = 0.05

Call: TypeAlias = tuple[str, JsonObject]
"""Name and arguments of a tool call."""
Step: TypeAlias = str | Call
"""What the model does in one turn: say a text, or call one tool."""


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """The answer to one task."""

    expected: str
    others: tuple[str, ...]
    """Letters of the task's other options; empty when it has none."""
    skill: float
    """Probability that the model answers this task right."""
    thinks: bool = True
    """Whether thoughts may stand before the result; not where the verifier takes the whole response."""

    def step(self, draws: Draws, made: Sequence[Call]) -> Step:
        """Write an answer: thoughts of some length, longer when wrong, and a boxed result."""
        if draws.unit("right") < self.skill:
            return self._written(_box(self.expected), draws, most_thoughts=5)
        boxed = draws.unit("boxed") >= _UNBOXED_SHARE
        return self._written(_box(self.wrong(draws)) if boxed else "I give up.", draws, most_thoughts=14)

    def wrong(self, draws: Draws) -> str:
        """Draw a wrong answer: another option, another number, or else that it is unknown."""
        if self.others:
            return draws.pick("option", self.others)
        plain = self.expected.replace(",", "").strip()
        if _NUMBER.fullmatch(plain):
            return _other_number(Decimal(plain), draws)
        return "unknown" if self.expected.strip().lower() != "unknown" else "nothing"

    def _written(self, result: str, draws: Draws, *, most_thoughts: int) -> str:
        if not self.thinks:
            return result
        count = draws.whole("length", 1, most_thoughts)
        thoughts = [draws.pick(f"thought {nth}", _THOUGHTS) for nth in range(count)]
        return f"{' '.join(thoughts)}\n\n{result}"  # some verifiers take the last line


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """Whole answers to one task, as its file has them: for verdicts that look at more than one boxed result."""

    right: tuple[tuple[Step, ...], ...]
    wrong: tuple[tuple[Step, ...], ...]
    skill: float
    """Probability that the model goes a right way where it has the choice."""

    def step(self, draws: Draws, made: Sequence[Call]) -> Step | None:
        """Pick one of the answers that begin with the calls already made, and return its next step."""
        right, wrong = _going_on(self.right, made), _going_on(self.wrong, made)
        chosen = right if right and (not wrong or draws.unit("right") < self.skill) else wrong
        return draws.pick("text", chosen) if chosen else None


Known: TypeAlias = KnownAnswer | KnownSteps


def _going_on(answers: Sequence[tuple[Step, ...]], made: Sequence[Call]) -> list[Step]:
    return [steps[len(made)] for steps in answers if len(steps) > len(made) and steps[: len(made)] == tuple(made)]


def load_answers(paths: list[str], *, mean_skill: float, seed: int) -> dict[bytes, Known]:
    """Read task files into answers by the digest of the task's normalised input.

    A row's `scripted_answers` are given as they are; else its `expected_answer` is boxed. Rows with neither are left
    out; of rows with the same input the first counts.

    Args:
        paths: JSONL files.
        mean_skill: mean of the tasks' skills, in [0, 1].
        seed: decides each task's skill, together with its input.

    Raises:
        ConfigError: a file cannot be read, a line is not a task with an input or has malformed `scripted_answers`,
            or no task of a file has an answer; names file and line.
    """
    answers: dict[bytes, Known] = {}
    for path in map(Path, paths):
        found = False
        for where, digest, row in _rows_by_input(path):
            skill = Draws(b"task", seed, digest).beta("skill", mean_skill)
            known = _known_answer(row, skill, where)
            if known is not None:
                found = True
                answers.setdefault(digest, known)
        if not found:
            raise ConfigError(
                f"{path}: no task has an `expected_answer` or `{SCRIPTED}`, so the model can answer none of them"
            )
    return answers


def _known_answer(row: Row, skill: float, where: str) -> Known | None:
    texts = field(row, SCRIPTED)
    if texts is not None:
        given = as_object(texts)
        return KnownSteps(_listed(given, "right", where), _listed(given, "wrong", where), skill)
    expected = _text(field(row, "expected_answer"))
    if expected is None:
        return None
    thinks = field(row, "extraction_mode") != "full_response"
    return KnownAnswer(expected, _other_letters(row, expected), skill, thinks)


def _listed(answers: JsonObject, name: str, where: str) -> tuple[tuple[Step, ...], ...]:
    found = answers.get(name)
    steps = [_steps(answer) for answer in found] if isinstance(found, list) else []
    if not steps or not all(steps):
        raise ConfigError(f"{where}: `{SCRIPTED}.{name}` must be a list of at least one text, or list of steps")
    return tuple(steps)


def _steps(answer: JsonValue) -> tuple[Step, ...]:
    """Read a text, or calls of tools and maybe a text in the end; empty when it is neither."""
    given = answer if isinstance(answer, list) else [answer]
    steps: list[Step] = [step if isinstance(step, str) else _call(as_object(step)) for step in given]
    named = all(isinstance(step, str) or step[0] for step in steps)
    said_early = any(isinstance(step, str) for step in steps[:-1])
    return tuple(steps) if named and not said_early else ()


def _call(step: JsonObject) -> Call:
    return as_json_text(step.get("call")), as_object(step.get("arguments"))


def _rows_by_input(path: Path) -> Iterator[tuple[str, bytes, Row]]:
    try:
        for number, line in iter_lines(path):
            row, where = parse_line(path, number, line), f"{path}:{number}"
            yield where, _row_digest(row, where), row
    except ConfigError:
        raise
    except InputError as error:
        raise ConfigError(error.detail) from None


def _row_digest(row: Row, where: str) -> bytes:
    task_input = as_object(row.get(PARAMS)).get("input")
    if task_input is None:
        raise ConfigError(f"{where}: the row has no {PARAMS}.input (a file for a prompt config must be rendered first)")
    try:
        return input_digest(normalize_input(task_input))
    except InputError as error:
        raise ConfigError(f"{where}: {error.detail}") from None


def _text(expected: JsonValue) -> str | None:
    """Return an expected answer as text; of several accepted answers the first."""
    first = expected[0] if isinstance(expected, list) and expected else expected
    return None if first is None or first == [] else as_json_text(first)


def _other_letters(row: Row, expected: str) -> tuple[str, ...]:
    options = field(row, "options")
    choices = options if isinstance(options, list) else []
    letters = [letter for choice in choices for letter in as_object(choice)]
    return tuple(letter for letter in letters if letter.strip().upper() != expected.strip().upper())


def _box(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _other_number(value: Decimal, draws: Draws) -> str:
    """Return a number that differs by the size of the leading digit: plausible, and not close enough to pass."""
    step = Decimal(draws.whole("step", 1, 4)).scaleb(value.adjusted())
    lower, higher = value - step, value + step
    keeps_sign = (lower < 0) == (value < 0)
    return format(lower if keeps_sign and draws.unit("lower") < 0.5 else higher, "f")
