from collections.abc import Callable
from typing import ClassVar, TypeAlias

from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.string_match.compare import exact_score, lenient_score
from rollmill_services.resources.string_match.extract import EXTRACTORS

Extractor: TypeAlias = Callable[[str], str | None]
Score: TypeAlias = Callable[[str, str], float]


class StringMatch(Resources):
    """Short answers with one right text, number or list, in whatever spelling."""

    reverify_mode: ClassVar[ReverifyMode] = "stateless"

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: `expected_answer`, `extraction_mode` or `case_sensitive` is missing or wrong.
        """
        _task(Rollout(row))

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 for the expected answer, 0.98 for a close number, else 0.0.

        `extracted_answer` is the answer as the model wrote it, null when none was found.

        Raises:
            InputError: `expected_answer`, `extraction_mode` or `case_sensitive` is missing or wrong.
        """
        expected, extract, score = _task(rollout)
        answer = extract(rollout.text) or None
        return Verdict(0.0 if answer is None else score(answer, expected), {"extracted_answer": answer})


def _task(rollout: Rollout) -> tuple[str, Extractor, Score]:
    return _expected(rollout), _extractor(rollout), _score(rollout)


def _expected(rollout: Rollout) -> str:
    value = rollout.require("expected_answer")
    if isinstance(value, bool) or not isinstance(value, str | int | float) or not str(value).strip():
        raise _wrong("expected_answer", "must be text or a number")
    return str(value)


def _extractor(rollout: Rollout) -> Extractor:
    mode = rollout.field("extraction_mode") or "final_answer"
    if not isinstance(mode, str) or mode not in EXTRACTORS:
        raise _wrong("extraction_mode", f"must be one of {', '.join(EXTRACTORS)}")
    return EXTRACTORS[mode]


def _score(rollout: Rollout) -> Score:
    case_sensitive = rollout.field("case_sensitive") or False
    if not isinstance(case_sensitive, bool):
        raise _wrong("case_sensitive", "must be true or false")
    return exact_score if case_sensitive else lenient_score


def _wrong(name: str, detail: str) -> InputError:
    return InputError(f"{name!r}: {detail}", errors=[{"pointer": f"/{name}", "detail": detail}])
