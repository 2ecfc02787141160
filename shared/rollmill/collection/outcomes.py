"""What one attempt at a rollout ended in, told from the agent's answer. No I/O."""

from dataclasses import dataclass

from rollmill.contracts import rows
from rollmill.contracts.failures import UNVERIFIED, Boundary, Failure, Phase
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import Row, RowKey, row_key, valid_reward
from rollmill.errors import RollmillError, UnauthorizedError, is_retryable

_BOUNDARIES: tuple[Boundary, ...] = ("agent", "model", "resources", "collector")
_PHASES: tuple[Phase, ...] = ("seed", "model", "tool", "verify")
_KEYS = (rows.TASK_INDEX, rows.ROLLOUT_INDEX, rows.AGENT_REF)
_FAILURE_MARKS = (rows.FAILURE_CLASS, rows.FAILURE_TERMINAL, rows.NO_PERSIST)


@dataclass(frozen=True, slots=True)
class Assignment:
    """One rollout to be run: its materialized row, serialised once."""

    key: RowKey
    agent: str
    row: Row
    line: bytes


@dataclass(frozen=True, slots=True)
class Completed:
    """A graded rollout."""

    row: Row
    line: bytes
    """The row as it goes to the file."""

    @property
    def reward(self) -> float:
        """The verifier's reward."""
        return float(self.row[rows.REWARD])


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed attempt."""

    failure: Failure
    failure_class: str
    terminal: bool = False
    persist: bool = True
    """Whether it goes to the failures file; a killed rollout does not, and is run again by a resume."""
    row: Row | None = None
    """The agent's row, when it classified the failure itself."""
    unverified: Row | None = None
    """What the row had gained when its grading failed: it can be graded again without its model."""


def read_outcome(assignment: Assignment, body: bytes, *, attempt: int = 0) -> Completed | Failed:
    """Judge an agent's answer to `/run`: it must be the same rollout and the same attempt, with a finite reward.

    The row's keys and agent are filled in where an agent dropped them.
    """
    try:
        row = loads(body)
    except ValueError:
        return _wrong("invalid-answer", "the answer is not valid JSON")
    if not isinstance(row, dict):
        return _wrong("invalid-answer", "the answer is not a JSON object")
    dropped = {name: assignment.row[name] for name in _KEYS if row.get(name) is None}
    row |= dropped
    if not _same_key(row, assignment.key):
        return _wrong("wrong-row", f"the answer is the row of another rollout than {assignment.key}")
    asked = attempt or assignment.row.get(rows.ATTEMPT_INDEX)
    if row.get(rows.ATTEMPT_INDEX, asked) != asked:
        return _wrong("wrong-row", f"the answer is not that of attempt {asked or 0}, which was asked for")
    if any(row.get(name) for name in _FAILURE_MARKS):
        return _classified(row)
    if not valid_reward(row.get(rows.REWARD)):
        return _wrong("invalid-reward", f"the reward must be a finite number, got {row.get(rows.REWARD)!r:.100}")
    line = dumps(row) if dropped or b"\n" in body else body
    return Completed(row, line)


def timed(outcome: Completed, *, seconds: float, started_at: float, attempt: int) -> Completed:
    """Return a rollout with a note of how it came about: spliced into its line, which is not serialised again.

    Args:
        outcome: the rollout.
        seconds: how long the attempt took.
        started_at: when it began, in Unix seconds.
        attempt: its number, from 0.
    """
    timing = {"seconds": round(seconds, 4), "started_at": round(started_at, 3), "attempt": attempt}
    row = {**outcome.row, rows.TIMING: timing}
    if rows.TIMING in outcome.row:
        return Completed(row, dumps(row))
    note = b',"%b":%b}' % (rows.TIMING.encode(), dumps(timing))
    return Completed(row, outcome.line.rstrip()[:-1] + note)


def failed_by(error: RollmillError) -> Failed:
    """Turn an error of a call to an agent into the failure of the service that caused it."""
    told = error.extensions.get("boundary")
    boundary: Boundary = told if told in _BOUNDARIES else "agent"
    phase = error.extensions.get("phase")
    failure = Failure(
        boundary=boundary,
        type=_type_of(error),
        detail=error.detail[:2000],
        retryable=is_retryable(error),
        phase=phase if phase in _PHASES else None,
    )
    unverified = error.extensions.get(UNVERIFIED)
    return Failed(failure, failure.type, unverified=unverified if isinstance(unverified, dict) else None)


def _type_of(error: RollmillError) -> str:
    """The type of the first failure in the chain; an engine that refuses the key is as unauthorised as a service."""
    if error.extensions.get("upstream_status") in (401, 403):
        return UnauthorizedError.slug
    slug = error.extensions.get("upstream_type")
    return slug if isinstance(slug, str) else error.slug


def failure_line(assignment: Assignment, attempt: int, failed: Failed) -> bytes:
    """Render the line of the failures file."""
    line: JsonObject = {
        rows.TASK_INDEX: assignment.key.task,
        rows.ROLLOUT_INDEX: assignment.key.rollout,
        rows.ATTEMPT_INDEX: attempt,
        rows.AGENT_REF: assignment.row[rows.AGENT_REF],
        rows.FAILURE_CLASS: failed.failure_class,
        rows.FAILURE_TERMINAL: failed.terminal,
        "failure": failed.failure.model_dump(exclude_none=True),
    }
    kept = failed.row or failed.unverified or {}
    rest = {name: value for name, value in kept.items() if name not in (rows.PARAMS, rows.REWARD)}
    return dumps({**rest, **line})


def _classified(row: Row) -> Failed:
    name = str(row.get(rows.FAILURE_CLASS) or "unclassified")
    terminal = bool(row.get(rows.FAILURE_TERMINAL))
    persist = not row.get(rows.NO_PERSIST)
    failure = Failure(
        boundary="agent", type=name, detail=f"the agent classified this rollout as {name}", retryable=not terminal
    )
    return Failed(failure, name, terminal=terminal, persist=persist, row=row)


def _same_key(row: Row, key: RowKey) -> bool:
    try:
        return row_key(row) == key
    except ValueError:
        return False


def _wrong(slug: str, detail: str) -> Failed:
    return Failed(Failure(boundary="agent", type=slug, detail=detail, retryable=False), slug)
