from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Status: TypeAlias = Literal["pass", "fail", "skip"]

_SHOWN: Final = 3
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    service: str
    name: str
    status: Status
    detail: str
    """What was looked at, the first faults, or why nothing was looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says of the service it was given."""

    status: Status
    detail: str


def judged(faults: Sequence[str], passed: str) -> Finding:
    """Fail with the first faults when there are any, else pass with the text given."""
    if not faults:
        return Finding("pass", passed)
    shown = [_short(fault) for fault in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        shown.append(f"and {len(faults) - _SHOWN} more")
    return Finding("fail", "; ".join(shown))


def skipped(why: str) -> Finding:
    """Say why a check was not made."""
    return Finding("skip", why)


def counted(number: int, noun: str) -> str:
    """Write a number of things: `1 task`, `2 tasks`."""
    return f"{number} {noun}{'s' * (number != 1)}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
