import sys

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import (
    AGENT_REF,
    ATTEMPT_INDEX,
    COMPONENTS,
    RESPONSE,
    ROLLOUT_INDEX,
    TASK_INDEX,
    Row,
)

# The attempt index is there only after a retry: as a metric it would make a run with faults differ from one without.
_NOT_METRICS = frozenset({TASK_INDEX, ROLLOUT_INDEX, ATTEMPT_INDEX, AGENT_REF})

_LARGEST = sys.float_info.max
_NUMBERS = (int, float)  # a tuple tests faster than a union, and this runs for every field of every rollout


def is_number(value: JsonValue) -> bool:
    """Say whether a value is a number or boolean that a double can hold; NaN, infinities and huge ints are not."""
    return isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST


def usage_of(row: Row) -> JsonObject:
    """Return the row's `response.usage`; empty when it has none."""
    response = row.get(RESPONSE)
    usage = response.get("usage") if isinstance(response, dict) else None
    return usage if isinstance(usage, dict) else {}


def numeric_fields(row: Row) -> dict[str, float]:
    """Return the numeric fields of a rollout row, in the order in which the row has them.

    They are the top-level numbers, the numbers of `response.usage` merged over them, and each number of
    `reward_components` as `reward_components/<name>`. Ints stay ints, booleans become 0 and 1. Left out are the
    row's keys, everything nested deeper, and values that are not finite doubles.
    """
    fields = _numbers(row)
    fields.update(_numbers(usage_of(row)))
    components = row.get(COMPONENTS)
    if isinstance(components, dict):
        fields.update({f"{COMPONENTS}/{name}": value for name, value in _numbers(components).items()})
    return fields


def _numbers(values: JsonObject) -> dict[str, float]:
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in values.items()
        if isinstance(value, _NUMBERS) and -_LARGEST <= value <= _LARGEST and name not in _NOT_METRICS
    }
