import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from rollmill.artifacts.reader import iter_lines, parse_line
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import PARAMS, Row, field
from rollmill.errors import ConfigError, InputError
from rollmill.openai import normalize_input
from rollmill.openai.items import as_json_text, as_object
from rollmill_services.models.scripted.draws import Draws, input_digest

SCRIPTED = "scripted_answers"
"""Row field `{"right": [text, ...], "wrong": [text, ...]}`."""
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

    def reply(self, draws: Draws) -> str:
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
class KnownTexts:
    """Whole answers to one task, as its file has them: for verdicts that look at more than one boxed result."""

    right: tuple[str, ...]
    wrong: tuple[str, ...]
    skill: float
    """Probability that the model gives one of the right answers."""

    def reply(self, draws: Draws) -> str:
        """Pick an answer."""
        texts = self.right if draws.unit("right") < self.skill else self.wrong
        return draws.pick("text", texts)


def load_answers(paths: list[str], *, mean_skill: float, seed: int) -> dict[bytes, KnownAnswer | KnownTexts]:
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
    answers: dict[bytes, KnownAnswer | KnownTexts] = {}
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


def _known_answer(row: Row, skill: float, where: str) -> KnownAnswer | KnownTexts | None:
    texts = field(row, SCRIPTED)
    if texts is not None:
        given = as_object(texts)
        return KnownTexts(_listed(given, "right", where), _listed(given, "wrong", where), skill)
    expected = _text(field(row, "expected_answer"))
    if expected is None:
        return None
    thinks = field(row, "extraction_mode") != "full_response"
    return KnownAnswer(expected, _other_letters(row, expected), skill, thinks)


def _listed(texts: JsonObject, name: str, where: str) -> tuple[str, ...]:
    found = texts.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(text, str) for text in found):
        raise ConfigError(f"{where}: `{SCRIPTED}.{name}` must be a list of at least one text")
    return tuple(map(str, found))


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
