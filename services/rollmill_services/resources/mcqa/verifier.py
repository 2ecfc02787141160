import re
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError
from rollmill.grading.serving import LIMIT
from rollmill.grading.workers import WorkerPool
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.mcqa.choices import Options, lenient_choice
from rollmill_services.resources.mcqa.extract import EXTRACTORS, Extractor

_LONGEST_PATTERN = 500
_REGEX_WINDOW = 20_000
_REGEX_WORKER = Path(__file__).with_name("regex_worker.py")
_REGEX_FIELD = "template_metadata/output_regex"
_LETTER = re.compile(r"[A-Z]")


class McqaSettings(ServiceSettings):
    """Settings of the `mcqa` resources service."""

    regex_timeout_seconds: float = Field(default=2.0, gt=0)
    """Longest search with a row's own `output_regex`; beyond it the rollout has no answer."""
    regex_workers: int = Field(default=1, ge=1)
    """Most processes that search with such patterns; they start when the first such row comes."""


class Mcqa(Resources):
    """Multiple choice: finds the letter that the answer names and compares it with the expected one."""

    Settings = McqaSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"

    def __init__(self, settings: McqaSettings | None = None) -> None:
        super().__init__(settings)
        limits = settings or McqaSettings()
        self._timeout_seconds = limits.regex_timeout_seconds
        self._searchers = WorkerPool(
            _REGEX_WORKER, count=limits.regex_workers, timeout_seconds=limits.regex_timeout_seconds
        )

    async def shutdown(self) -> None:
        """End the processes that search."""
        await self._searchers.stop()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: `options`, `expected_answer`, `grading_mode` or `output_regex` is missing or wrong.
        """
        _task(Rollout(row))

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the answer names the expected letter; `extracted_answer` is the letter found, or null.

        Raises:
            InputError: `options`, `expected_answer`, `grading_mode` or `output_regex` is missing or wrong.
        """
        task = _task(rollout)
        if task.pattern is None:
            return _verdict(task.extract(rollout.text, task.options), task.expected)
        return await self._verify_with(task.pattern, rollout.text, task)

    async def _verify_with(self, pattern: str, text: str, task: "_Task") -> Verdict:
        request = {"pattern": pattern, "text": text[-_REGEX_WINDOW:], LIMIT: self._timeout_seconds}
        reply = await self._searchers.ask(request)
        if reply is None:
            verdict = _verdict(None, task.expected)
            return Verdict(verdict.reward, {**verdict.details, "output_regex_timed_out": True})
        if error := reply.get("error"):
            raise _wrong(_REGEX_FIELD, str(error))
        found = reply["match"]
        choice = task.extract(text, task.options) if found is None else lenient_choice(found, task.options)
        return _verdict(choice, task.expected)


class _Task(NamedTuple):
    options: Options
    expected: str
    extract: Extractor
    pattern: str | None


def _task(rollout: Rollout) -> _Task:
    options = _options(rollout)
    return _Task(options, _expected(rollout, options), _extractor(rollout), _pattern(rollout))


def _verdict(answer: str | None, expected: str) -> Verdict:
    return Verdict(float(answer == expected), {"extracted_answer": answer})


def _options(rollout: Rollout) -> Options:
    given: JsonValue = rollout.require("options")
    entries = given if isinstance(given, list) else [given]
    options: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise _wrong("options", "must be a list of {letter: text}")
        for key, text in entry.items():
            letter = str(key).strip().upper()
            if not _LETTER.fullmatch(letter) or letter in options:
                raise _wrong("options", f"{key!r} is not a letter, or is there twice")
            options[letter] = str(text)
    return options


def _expected(rollout: Rollout, options: Options) -> str:
    expected = rollout.require("expected_answer")
    letter = expected.strip().upper() if isinstance(expected, str) else ""
    if letter not in options:
        raise _wrong("expected_answer", f"must be the letter of an option, got {expected!r}")
    return letter


def _extractor(rollout: Rollout) -> Extractor:
    mode = rollout.field("grading_mode") or "strict_single_letter_boxed"
    if not isinstance(mode, str) or mode not in EXTRACTORS:
        raise _wrong("grading_mode", f"must be one of {', '.join(EXTRACTORS)}")
    return EXTRACTORS[mode]


def _pattern(rollout: Rollout) -> str | None:
    metadata = rollout.field("template_metadata")
    pattern = metadata.get("output_regex") if isinstance(metadata, dict) else None
    if pattern is None or pattern == "":
        return None
    if not isinstance(pattern, str) or len(pattern) > _LONGEST_PATTERN:
        raise _wrong(_REGEX_FIELD, f"must be text of at most {_LONGEST_PATTERN} characters")
    return pattern


def _wrong(name: str, detail: str) -> InputError:
    return InputError(f"{name!r}: {detail}", errors=[{"pointer": f"/{name}", "detail": detail}])
