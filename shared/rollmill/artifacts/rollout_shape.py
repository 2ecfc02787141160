"""Decodes rollouts that look alike: names of fields are learned, numbers are decoded, everything else is skipped."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from rollmill.artifacts.output_items import NOTHING, Item
from rollmill.contracts.json import JsonValue, loads
from rollmill.contracts.rows import (
    AGENT_REF,
    ATTEMPT_INDEX,
    COMPONENTS,
    RESPONSE,
    REWARD,
    ROLLOUT_INDEX,
    TASK_INDEX,
    TIMING,
)

_FEW = 8
_MOST_NAMES = 500
_NUMBER_STARTS = frozenset(b"-0123456789tf")


class Timing(msgspec.Struct, gc=False):
    """What counts of the member that the collector adds."""

    seconds: float | None = None


@dataclass(slots=True)
class Shaped:
    """Columns of rollouts, one value for each rollout."""

    tasks: Sequence[JsonValue]
    rollouts: Sequence[JsonValue]
    agents: Sequence[Raw]
    outputs: Sequence[list[Item] | None]
    incomplete: Sequence[Raw]
    seconds: Sequence[float | None]
    answers: dict[str, Sequence[JsonValue]]
    """By the name of the field."""
    numbers: dict[str, Sequence[JsonValue]]
    """By name: numbers, and anything else where a rollout has no number."""
    usage: frozenset[str]
    """Those of the names that are in `response.usage`."""


class RolloutShape:
    """What rollouts look like, as learned from those seen so far.

    Args:
        answers: names of the fields that may hold an answer.
    """

    def __init__(self, answers: Iterable[str]) -> None:
        self._answers = [name for name in answers if name not in _FIXED and _can_be_learned(name)]
        self._top = _Members([REWARD, *self._answers])
        self._usage = _Members()
        self._components = _Members()
        self._decoder = self._build()

    def decode(self, lines: Sequence[bytes]) -> Shaped | None:
        """Decode lines; None when one of them is no usual rollout, or they differ too much from each other."""
        for sample in ([], lines[:_FEW], lines):
            try:
                self._learn(sample)
                return self._columns(lines)
            except (msgspec.MsgspecError, _UnfitError):
                continue
            except ValueError:  # not JSON, or not UTF-8
                return None
        return None

    def _columns(self, lines: Sequence[bytes]) -> Shaped:
        check_text(lines)
        columns = _columns(list(map(self._decoder.decode, lines)))
        fixed = dict(zip(_FIXED, columns, strict=False))
        responses = fixed[RESPONSE]
        top = self._top.numbers(columns[len(_FIXED) :])
        usage = self._usage.numbers(_columns([response and response.usage for response in responses]))
        components = {
            f"{COMPONENTS}/{name}": column
            for name, column in self._components.numbers(_columns(fixed[COMPONENTS])).items()
        }
        numbers = top | components | usage
        if len(numbers) < len(top) + len(components) + len(usage):
            raise _UnfitError  # a name in two places: which one counts may differ from rollout to rollout
        return Shaped(
            tasks=fixed[TASK_INDEX],
            rollouts=fixed[ROLLOUT_INDEX],
            agents=fixed[AGENT_REF],
            outputs=[response and response.output for response in responses],
            incomplete=[NOTHING if response is None else response.incomplete_details for response in responses],
            seconds=[timing and timing.seconds for timing in fixed[TIMING]],
            answers={name: top[name] for name in self._answers},
            numbers=numbers,
            usage=frozenset(usage),
        )

    def _learn(self, lines: Sequence[bytes]) -> None:
        changed = False
        for row in map(loads, lines):
            response = row.get(RESPONSE) if isinstance(row, dict) else None
            usage = response.get("usage") if isinstance(response, dict) else None
            if isinstance(row, dict):
                changed |= self._top.learn({name: value for name, value in row.items() if name not in _FIXED})
                changed |= self._components.learn(row.get(COMPONENTS))
            changed |= self._usage.learn(usage)
        if changed:
            self._decoder = self._build()

    def _build(self) -> "msgspec.json.Decoder[JsonValue]":
        fields = [("usage", self._usage.struct() | None, None), ("output", list[Item] | None, None)]
        response = msgspec.defstruct("Response", [*fields, ("incomplete_details", Raw, NOTHING)], gc=False)
        types: dict[str, tuple[JsonValue, JsonValue]] = _FIXED | {
            RESPONSE: (response | None, None),
            COMPONENTS: (self._components.struct() | None, None),
        }
        return msgspec.json.Decoder(self._top.struct(types))


def check_text(lines: Sequence[bytes]) -> None:
    """Check that lines are UTF-8, since msgspec does not look into the text that it skips.

    Raises:
        UnicodeDecodeError: one is not.
    """
    for line in lines:
        if not line.isascii():
            line.decode()


_FIXED: dict[str, tuple[JsonValue, JsonValue]] = {
    TASK_INDEX: (object, None),
    ROLLOUT_INDEX: (object, None),
    ATTEMPT_INDEX: (Raw, NOTHING),
    AGENT_REF: (Raw, NOTHING),
    RESPONSE: (object, None),
    COMPONENTS: (object, None),
    TIMING: (Timing | None, None),
}
"""Members of a rollout whose meaning is known: type and default."""


class _UnfitError(Exception):
    """The lines are not like what was learned."""


class _Members:
    """The members that objects of one kind have, and which of them ever held a number."""

    def __init__(self, numeric: Iterable[str] = ()) -> None:
        self._numeric = dict.fromkeys(numeric, True)

    def learn(self, values: JsonValue) -> bool:
        """Learn from an object; return whether there was something new."""
        known = len(self._numeric), sum(self._numeric.values())
        for name, value in values.items() if isinstance(values, dict) else ():
            if _can_be_learned(name):
                self._numeric[name] = self._numeric.get(name, False) or isinstance(value, int | float)
        return known != (len(self._numeric), sum(self._numeric.values()))

    def struct(self, fixed: Mapping[str, tuple[JsonValue, JsonValue]] | None = None) -> type[msgspec.Struct]:
        """Return a type for such objects; it refuses one that has other members.

        Args:
            fixed: members that come first, with their types and defaults.
        """
        if len(self._numeric) > _MOST_NAMES:
            raise _UnfitError
        types = {**(fixed or {})}
        types |= {name: (object, None) if numeric else (Raw, NOTHING) for name, numeric in self._numeric.items()}
        return msgspec.defstruct(
            "Members",
            [(f"f{i}", *kind) for i, kind in enumerate(types.values())],
            rename={f"f{i}": name for i, name in enumerate(types)},
            forbid_unknown_fields=True,
            gc=False,
        )

    def numbers(self, columns: Sequence[Sequence[JsonValue]]) -> dict[str, Sequence[JsonValue]]:
        """Return the columns that hold numbers, by name; none when there are no objects."""
        if not columns:
            return {}
        named = dict(zip(self._numeric, columns, strict=True))
        for name, column in named.items():
            if not self._numeric[name] and not _NUMBER_STARTS.isdisjoint({memoryview(raw)[0] for raw in column}):
                raise _UnfitError  # this one has numbers after all
        return {name: column for name, column in named.items() if self._numeric[name]}


def _columns(structs: Sequence[msgspec.Struct | None]) -> list[Sequence[JsonValue]]:
    """Return the members of objects as columns; an object that is missing has only missing members."""
    present = next((struct for struct in structs if struct is not None), None)
    if present is None:
        return []
    missing = tuple(present.__struct_defaults__)
    rows = [missing if struct is None else msgspec.structs.astuple(struct) for struct in structs]
    return list(zip(*rows, strict=True))


def _can_be_learned(name: str) -> bool:
    return not any(character in '"\\' or character < " " for character in name)  # msgspec refuses such names
