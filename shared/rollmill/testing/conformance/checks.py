"""The checks, one function each. They see a server through its endpoints alone."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.errors import InputError, RollmillError
from rollmill.testing.conformance.attacks import attacks_on
from rollmill.testing.conformance.declarations import tool_faults
from rollmill.testing.conformance.fixtures import Fixture
from rollmill.testing.conformance.probe import Probe, answered, response_of
from rollmill.testing.conformance.report import Finding, counted, judged, skipped

_MOST_TARGETS: Final = 3
_SAME_REWARD: Final = 1e-9
_NO_TASKS: Final = "no tasks: name a file with --tasks, or a dataset in the topology"
_NO_FIXTURES: Final = "no fixtures.yaml beside the environment's module, and none named with --fixtures"
_METADATA: Final = "verifier_metadata"
_NOT_OF_THE_ENVIRONMENT: Final = {rows.PARAMS, rows.AGENT_REF, rows.RESPONSE, rows.TASK_INDEX, rows.ROLLOUT_INDEX}


@dataclass(frozen=True, slots=True)
class Subject:
    """A resources server, and what is known about it."""

    probe: Probe
    capabilities: JsonObject
    tasks: Sequence[Row] = ()
    fixtures: Sequence[Fixture] = ()

    @property
    def mode(self) -> JsonValue:
        """The server's `reverify_mode`."""
        return self.capabilities.get("reverify_mode")

    def verdict(self, row: Row) -> JsonObject:
        """Return the part of a verified row that must be the same each time: rewards, scores and the answer."""
        scores = self.capabilities.get("score_fields")
        names = [rows.REWARD, rows.COMPONENTS, *(scores if isinstance(scores, list) else [])]
        return {name: row.get(name) for name in [*names, self.capabilities.get("answer_field")] if name in row}


async def tools(subject: Subject) -> Finding:
    """Every declared tool has a name, a description and a schema that engines accept."""
    declared = subject.capabilities.get("tools")
    if not isinstance(declared, list):
        return judged(["`capabilities.tools` of GET /version is not a list"], "")
    return judged([fault for tool in declared for fault in tool_faults(tool)], counted(len(declared), "tool"))


async def tasks(subject: Subject) -> Finding:
    """Every task opens a session, which can be closed twice."""
    if not subject.tasks:
        return skipped(_NO_TASKS)
    faults = []
    for number, row in enumerate(subject.tasks):
        try:
            await subject.probe.seed(row)
        except RollmillError as error:
            faults.append(f"task {number}: {error.detail}")
    return judged(faults, f"{counted(len(subject.tasks), 'task')} can be seeded")


async def missing_fields(subject: Subject) -> Finding:
    """A row without one of its fields is graded all the same, or refused with 422 and the field's name."""
    row = next(iter([*subject.tasks, *(f.task for f in subject.fixtures if isinstance(f.task, dict))]), None)
    if row is None:
        return skipped(_NO_TASKS)
    faults, needed, late = [], [], []
    for name, without in _rows_without_a_field(row):
        try:
            refused = await _refusal(subject.probe, without)
        except RollmillError as error:
            if not _refused(error):
                faults.append(f"without {name!r}: {error.status} instead of 422: {error.detail}")
            continue
        if refused is None:
            continue
        needed.append(name)
        if name not in str(refused):
            faults.append(f"without {name!r} it is refused, but the error does not name it: {refused}")
        elif refused.when == "verify":
            late.append(name)
    told = f"needs {', '.join(needed)}" if needed else "needs no field"
    return judged(faults, f"{told}; told only when graded: {', '.join(late)}" if late else told)


async def fixtures(subject: Subject) -> Finding:
    """Known-right and known-wrong answers get their rewards."""
    if not subject.fixtures:
        return skipped(_NO_FIXTURES)
    faults = []
    for number, fixture in enumerate(subject.fixtures):
        try:
            verified = await _played(subject, fixture)
        except RollmillError as error:
            faults.append(f"fixture {number}: {error.detail}")
            continue
        if fault := _reward_fault(verified):
            faults.append(f"fixture {number}: {fault}")
        elif abs(verified[rows.REWARD] - fixture.reward) > _SAME_REWARD:
            faults.append(f"fixture {number}: reward {verified[rows.REWARD]:g}, not {fixture.reward:g}")
    return judged(faults, f"{counted(len(subject.fixtures), 'fixture')} with the right reward")


async def same_verdict(subject: Subject) -> Finding:
    """A server that says `stateless` gives the same verdict for a row again, and in another order."""
    if subject.mode != "stateless":
        return skipped(f"reverify_mode is {subject.mode!r}")
    played = [await _played(subject, fixture) for fixture in subject.fixtures]
    if not played:
        played = [{**row, rows.RESPONSE: answered(row, "")} for row in subject.tasks[:_MOST_TARGETS]]
    if not played:
        return skipped(_NO_TASKS)
    first = [subject.verdict(await subject.probe.grade(row)) for row in played]
    again = [subject.verdict(await subject.probe.grade(row)) for row in reversed(played)]
    pairs = zip(first, reversed(again), strict=True)
    faults = [f"{dumps(a).decode()}, then {dumps(b).decode()}" for a, b in pairs if a != b]
    return judged(faults, f"{counted(len(played), 'row')} graded again in another order")


async def hostile_answers(subject: Subject) -> Finding:
    """No answer that knows nothing of the task gets the full reward; each gets a verdict, or is refused as input."""
    targets = _targets(subject)
    if not targets:
        return skipped(
            "no fixture's task has a known-right and a known-wrong answer" if subject.fixtures else _NO_TASKS
        )
    faults: list[str] = []
    fooled: list[str] = []
    count = 0
    for task, full in targets:
        for attack in attacks_on(task):
            count += 1
            try:
                verified = await subject.probe.play(attack.row, attack.response, encode=attack.encode)
            except RollmillError as error:
                if not _refused(error):
                    faults.append(f"{attack.name}: {error.status}, neither a verdict nor a refusal: {error.detail}")
                continue
            if fault := _reward_fault(verified):
                faults.append(f"{attack.name}: {fault}")
            elif verified[rows.REWARD] >= full:
                fooled.append(f"{attack.name} gets the full reward of {full:g}")
    if fooled and not faults and not subject.fixtures:
        return skipped(f"{fooled[0]}; only fixtures.yaml can tell whether it should")
    faults += fooled
    return judged(faults, f"{counted(count, 'answer')} without the full reward")


Conformance: TypeAlias = Callable[[Subject], Awaitable[Finding]]
CHECKS: Final[dict[str, Conformance]] = {
    "tools": tools,
    "tasks": tasks,
    "missing fields": missing_fields,
    "fixtures": fixtures,
    "same verdict": same_verdict,
    "hostile answers": hostile_answers,
}


@dataclass(slots=True)
class _Refusal:
    """A 422, and in which phase it came."""

    error: InputError
    when: str = field(default="seed")

    def __str__(self) -> str:
        return f"{self.error.detail} {self.error.extensions.get('errors', '')}"


async def _refusal(probe: Probe, row: Row) -> _Refusal | None:
    try:
        await probe.seed(row)
    except InputError as error:
        return _Refusal(error)
    try:
        await probe.play(row, answered(row, "An answer."))
    except InputError as error:
        return _Refusal(error, "verify")
    return None


def _rows_without_a_field(row: Row) -> Iterator[tuple[str, Row]]:
    for name in [name for name in row if name not in _NOT_OF_THE_ENVIRONMENT and name != _METADATA]:
        yield name, {key: value for key, value in row.items() if key != name}
    metadata = row.get(_METADATA)
    fields: JsonObject = metadata if isinstance(metadata, dict) else {}
    for name in fields:
        yield name, {**row, _METADATA: {key: value for key, value in fields.items() if key != name}}


async def _played(subject: Subject, fixture: Fixture) -> Row:
    row = fixture.row(subject.tasks)
    return await subject.probe.play(row, response_of(fixture, row), fixture.calls)


def _refused(error: RollmillError) -> bool:
    """Say whether a server found fault with what it was sent, and not with itself."""
    return 400 <= int(error.extensions.get("upstream_status", error.status)) < 500


def _reward_fault(verified: Row) -> str:
    reward = verified.get(rows.REWARD)
    return "" if rows.valid_reward(reward) else f"the reward is {reward!r}, not a finite number"


def _targets(subject: Subject) -> list[tuple[Row, float]]:
    """Choose the tasks to attack, each with its full reward: those of which right and wrong answers are known."""
    if not subject.fixtures:
        return [(row, 1.0) for row in subject.tasks[:_MOST_TARGETS]]
    rewards: dict[bytes, list[float]] = {}
    by_key: dict[bytes, Row] = {}
    for fixture in subject.fixtures:
        row = fixture.row(subject.tasks)
        key = dumps(row)
        by_key[key] = row
        rewards.setdefault(key, []).append(fixture.reward)
    known = [(by_key[key], max(given)) for key, given in rewards.items() if max(given) > min(given)]
    return known[:_MOST_TARGETS]
