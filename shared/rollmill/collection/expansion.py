"""From task lines to materialized rows: lazily, deterministically, and checked as a whole beforehand."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.artifacts.compact import CompactInts, DigestIndex
from rollmill.artifacts.keys import KeySet
from rollmill.artifacts.reader import iter_lines, parse_line
from rollmill.collection.prompts import PromptConfig, has_input
from rollmill.contracts import rows
from rollmill.contracts.json import MAX_DEPTH, JsonObject, NestingError, canonical, dumps, loads
from rollmill.contracts.rows import Row, RowKey
from rollmill.contracts.shards import ShardNumber
from rollmill.errors import InputError

DEFAULT = "_default"
SHOWN = 20
"""Most line numbers or names listed in one error."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """How the lines of a task file become rows."""

    num_repeats: int | dict[str, int] | None = None
    """Rollouts for each task; by agent name when a mapping, `_default` for the others."""
    add_seed: bool = False
    """Give each repeat its rollout index as the sampling seed."""
    limit: int | None = None
    """Use only so many lines."""
    shard: ShardNumber | None = None
    """Leave out the tasks of other shards; every line still counts for numbers and faults."""
    agent: str | None = None
    """Agent of rows that name none."""
    overrides: JsonObject = field(default_factory=dict)
    """Merged over each row's `responses_create_params`, top level only."""
    prompt: PromptConfig | None = None

    def __post_init__(self) -> None:
        _check_repeats(self.num_repeats)
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit must be at least 1, got {self.limit}")

    def digest(self) -> str:
        """Return a SHA-256 over everything but prompt and shard: another value makes another run."""
        parts = [self.num_repeats or 1, self.add_seed, self.limit, self.agent, self.overrides]
        return hashlib.sha256(canonical(parts)).hexdigest()

    def takes(self, keys: Sequence[RowKey]) -> bool:
        """Say whether a row's rollouts, all of one task, are in this shard."""
        return self.shard is None or any(self.shard.takes(key.task) for key in keys[:1])

    def repeats_for(self, agent: str) -> int:
        """Return the number of rollouts of each task of an agent; 0 when a mapping does not list it."""
        if isinstance(self.num_repeats, dict):
            return self.num_repeats.get(agent, self.num_repeats.get(DEFAULT, 0))
        return self.num_repeats or 1


@dataclass(frozen=True, slots=True)
class Survey:
    """What a look through the whole task file found."""

    digest: str
    """SHA-256 of the file's bytes."""
    lines: int
    """Lines used, those of other shards included."""
    rollouts: dict[str, int]
    """Rollouts by agent."""
    warnings: list[str]

    @property
    def expected(self) -> int:
        """Rollouts of the whole run."""
        return sum(self.rollouts.values())


def survey(path: Path, expansion: Expansion) -> Survey:
    """Check a task file as a whole before anything runs.

    Raises:
        InputError: a line is not a JSON object (file and line), or some rows cannot run (all of their line numbers).
    """
    checks = _Checks(path, expansion)
    for number, row in _rows(path, expansion):
        checks.see(number, row)
    checks.finish()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return Survey(digest.hexdigest(), checks.lines, checks.rollouts, checks.warnings())


def expand(path: Path, expansion: Expansion) -> Iterator[Row]:
    """Yield the materialized rows of a surveyed task file: a, a, b, b, ... with two repeats.

    The same file and expansion give the same rows in the same order, each time.
    """
    indexer = _Indexer()
    for _, row in _rows(path, expansion):
        yield from _repeat(row, expansion, indexer)


def _rows(path: Path, expansion: Expansion) -> Iterator[tuple[int, Row]]:
    for used, (number, line) in enumerate(iter_lines(path)):
        if expansion.limit is not None and used >= expansion.limit:
            return
        row = parse_line(path, number, line)
        if expansion.agent and rows.agent_name(row) is None:
            row[rows.AGENT_REF] = {"name": expansion.agent}
        yield number, row


def _repeat(row: Row, expansion: Expansion, indexer: "_Indexer") -> Iterator[Row]:
    repeats = expansion.repeats_for(rows.agent_name(row) or "")
    keys = indexer.keys(row, repeats)
    if not expansion.takes(keys):
        return
    if expansion.prompt is not None:
        row = expansion.prompt.apply(row)
    params = row.get(rows.PARAMS)
    merged = {**(params if isinstance(params, dict) else {}), **expansion.overrides}
    for key in keys:
        own = _seeded(merged, key.rollout) if expansion.add_seed else merged
        yield {**row, rows.PARAMS: own, rows.TASK_INDEX: key.task, rows.ROLLOUT_INDEX: key.rollout}


def _seeded(params: JsonObject, seed: int) -> JsonObject:
    """Put the seed where engines read it: `metadata.extra_body`, a JSON string."""
    metadata = params.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    body = loads(metadata["extra_body"]) if metadata.get("extra_body") else {}
    metadata["extra_body"] = dumps({**body, "seed": seed}).decode()
    return {**params, "metadata": metadata}


class _Indexer:
    """Numbers tasks and rollouts: identical lines are one task, a caller's own numbers are kept."""

    def __init__(self) -> None:
        self._tasks = DigestIndex()
        self._next_rollout = CompactInts()
        self._next_task = 0
        self._own_tasks = CompactInts()
        """1 for each number that a caller gave."""

    def keys(self, row: Row, repeats: int) -> list[RowKey]:
        task = self._task(row)
        own = _own_index(row, rows.ROLLOUT_INDEX)
        used = self._next_rollout[task]
        start = used if own is None else own
        self._next_rollout[task] = max(used, start + repeats)
        return [RowKey(task, rollout) for rollout in range(start, start + repeats)]

    def given_away(self, row: Row) -> bool:
        """Say whether the row's own task index was already given to another task, one without its own."""
        own = _own_index(row, rows.TASK_INDEX)
        return own is not None and own < self._next_task and not self._own_tasks[own]

    def _task(self, row: Row) -> int:
        own = _own_index(row, rows.TASK_INDEX)
        if own is not None:
            self._own_tasks[own] = 1
            return own
        digest = int.from_bytes(hashlib.blake2b(canonical(row), digest_size=8).digest(), "big")
        task = self._tasks.get(digest)
        return self._number(digest) if task is None else task

    def _number(self, digest: int) -> int:
        while self._own_tasks[self._next_task]:
            self._next_task += 1
        task = self._next_task
        self._tasks.add(digest, task)
        self._next_task += 1
        return task


def _own_index(row: Row, name: str) -> int | None:
    value = row.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


class _Checks:
    """Collects every fault of a task file, so that all of them are told at once."""

    def __init__(self, path: Path, expansion: Expansion) -> None:
        self._path = path
        self._expansion = expansion
        self._prompt_fields = expansion.prompt.fields() if expansion.prompt else set()
        self._indexer = _Indexer()
        self._keys = KeySet()
        self.lines = 0
        self.rollouts: dict[str, int] = {}
        self._agents: set[str] = set()
        self._no_agent: list[int] = []
        self._unlisted: dict[str, None] = {}
        self._has_input: list[int] = []
        self._missing_fields: list[str] = []
        self._bad_indices: list[int] = []
        self._bad_metadata: list[int] = []
        self._given_away: list[str] = []
        self._repeated_keys: list[str] = []
        self._unrendered: list[str] = []
        self._too_deep: list[int] = []

    def see(self, number: int, row: Row) -> None:
        self.lines += 1
        self._see_input(number, row)
        try:
            self._see_keys(number, row, self._repeats(number, row))
        except NestingError:
            self._too_deep.append(number)

    def _repeats(self, number: int, row: Row) -> int:
        """Count the row's rollouts for its agent; 0 when it cannot have any."""
        agent = rows.agent_name(row)
        if agent is None:
            self._no_agent.append(number)
            return 0
        repeats = self._expansion.repeats_for(agent)
        if repeats < 1:
            self._unlisted[agent] = None
            return 0
        self._agents.add(agent)
        return repeats

    def _see_input(self, number: int, row: Row) -> None:
        if self._expansion.prompt is not None and has_input(row):
            self._has_input.append(number)
        elif missing := sorted(self._prompt_fields - row.keys()):
            self._missing_fields.append(f"line {number}: {', '.join(missing)}")
        elif self._expansion.prompt is not None and (fault := _rendering_fault(self._expansion.prompt, row)):
            self._unrendered.append(f"line {number}: {fault}")
        if self._expansion.add_seed and not _extra_body_ok(row, self._expansion.overrides):
            self._bad_metadata.append(number)

    def _see_keys(self, number: int, row: Row, repeats: int) -> None:
        given = [name for name in (rows.TASK_INDEX, rows.ROLLOUT_INDEX) if row.get(name) is not None]
        if any(_own_index(row, name) is None for name in given):
            self._bad_indices.append(number)
            return
        if self._indexer.given_away(row):
            self._given_away.append(f"line {number}: {row[rows.TASK_INDEX]}")
            return
        keys = self._indexer.keys(row, repeats)
        if keys and self._expansion.takes(keys):
            agent = rows.agent_name(row) or ""
            self.rollouts[agent] = self.rollouts.get(agent, 0) + len(keys)
        for key in keys:
            if not self._keys.add(key):
                self._repeated_keys.append(f"line {number}: {key}")

    def finish(self) -> None:
        """Raise one error with all faults."""
        name = DEFAULT
        faults: list[tuple[Sequence[object], str]] = [
            (self._no_agent, "no agent_ref; name one for all with --agent: lines"),
            (list(self._unlisted), f"num_repeats lists neither these agents nor {name!r}:"),
            (self._has_input, "a prompt config would overwrite the input of lines"),
            (self._missing_fields, "the prompt config uses fields that rows lack:"),
            (self._unrendered, "the prompt config does not fit the values of"),
            (self._bad_indices, "_ng_task_index and _ng_rollout_index must be integers >= 0: lines"),
            (self._bad_metadata, "metadata.extra_body is not a JSON object in text, so no seed can be added: lines"),
            (self._too_deep, f"nested more than {MAX_DEPTH} levels deep: lines"),
            (self._given_away, "_ng_task_index of lines is the number that an earlier line without one got:"),
            (self._repeated_keys, "two rollouts would have the same task and rollout index:"),
        ]
        told = [f"{words} {_listed(found)}" for found, words in faults if found]
        if not told and not self.lines:
            told = ["there is no task in it"]
        if told:
            raise InputError("\n".join(f"{self._path}: {fault}" for fault in told))

    def warnings(self) -> list[str]:
        repeats = self._expansion.num_repeats
        listed = repeats if isinstance(repeats, dict) else {}
        unused = sorted(set(listed) - self._agents - {DEFAULT})
        return [f"num_repeats lists agents that no row uses: {_listed(unused)}"] if unused else []


def _rendering_fault(prompt: PromptConfig, row: Row) -> str:
    try:
        prompt.render(row)
    except (ValueError, TypeError) as error:  # a format such as {price:.2f} on a text
        return str(error)
    return ""


def _extra_body_ok(row: Row, overrides: JsonObject) -> bool:
    params = row.get(rows.PARAMS)
    merged = {**(params if isinstance(params, dict) else {}), **overrides}
    metadata = merged.get("metadata")
    raw = metadata.get("extra_body") if isinstance(metadata, dict) else None
    if not raw:
        return True
    try:
        return isinstance(raw, str) and isinstance(loads(raw), dict)
    except ValueError:
        return False


def _check_repeats(repeats: int | dict[str, int] | None) -> None:
    if repeats is None:
        return
    named = repeats if isinstance(repeats, dict) else {"num_repeats": repeats}
    low = [f"{name}: {count}" for name, count in named.items() if count < 1]
    if low:
        raise InputError(f"num_repeats must be at least 1, got {_listed(low)}")


def _listed(values: Sequence[object]) -> str:
    shown = ", ".join(map(str, values[:SHOWN]))
    return f"{shown} and {len(values) - SHOWN} more" if len(values) > SHOWN else shown
