"""The criteria of a task."""

from dataclasses import dataclass

from rollmill.contracts.json import JsonValue
from rollmill.contracts.rollouts import Rollout
from rollmill.errors import InputError

MOST_CRITERIA = 50


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that an answer should do."""

    name: str
    """Under which it is among the reward's components."""
    text: str
    weight: float
    """Its part of the reward, relative to the others; > 0."""


def criteria_of(rollout: Rollout) -> list[Criterion]:
    """Read a row's `rubric`: a list of texts, or of `{criterion, name?, weight?}`.

    Raises:
        InputError: it is missing or malformed; the message says where.
    """
    given = rollout.require("rubric")
    entries = given if isinstance(given, list) else [given]
    if not 1 <= len(entries) <= MOST_CRITERIA:
        raise _wrong("rubric", f"must have 1 to {MOST_CRITERIA} criteria, got {len(entries)}")
    criteria = [_criterion(number, entry) for number, entry in enumerate(entries, start=1)]
    names = [criterion.name for criterion in criteria]
    if len(set(names)) != len(names):
        raise _wrong("rubric", "two criteria have the same name")
    return criteria


def _criterion(number: int, entry: JsonValue) -> Criterion:
    parts = {"criterion": entry} if isinstance(entry, str) else entry
    if not isinstance(parts, dict):
        raise _wrong(f"rubric/{number - 1}", "must be a text or an object")
    text, name, weight = parts.get("criterion"), parts.get("name", f"criterion_{number}"), parts.get("weight", 1.0)
    if not isinstance(text, str) or not text.strip():
        raise _wrong(f"rubric/{number - 1}/criterion", "must be a text")
    if not isinstance(name, str) or not name:
        raise _wrong(f"rubric/{number - 1}/name", "must be a text")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < 1e9:
        raise _wrong(f"rubric/{number - 1}/weight", "must be a number above 0")
    return Criterion(name, text, float(weight))


def _wrong(place: str, detail: str) -> InputError:
    return InputError(f"{place!r}: {detail}", errors=[{"pointer": f"/{place}", "detail": detail}])
