from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import AGENT_REF, TASK_INDEX, Row, row_key
from rollmill.metrics.sources import Rollouts
from rollmill.metrics.table import RolloutTable

if TYPE_CHECKING:
    from rollmill.metrics.groups import Groups

ComputeMetrics: TypeAlias = Callable[[list[list[Row]]], JsonObject]
GetKeyMetrics: TypeAlias = Callable[[JsonObject], JsonObject]

_PER_TASK = "per_task_metrics"


def aggregate_metrics(
    verify_responses: Iterable[Row],
    *,
    compute_metrics: ComputeMetrics | None = None,
    get_key_metrics: GetKeyMetrics | None = None,
) -> JsonObject:
    """Answer `/aggregate_metrics`: statistics per task and over all rollouts, and the headline ones.

    Args:
        verify_responses: verified rows; their heavy fields are not needed, `response.usage` is.
        compute_metrics: given the rows grouped by task, by task and rollout index, returns an environment's own
            metrics: a `per_task_metrics` list is merged into the rows of those tasks, the rest into
            `agent_metrics`. Only when it is given are rows kept.
        get_key_metrics: chooses `key_metrics` from `agent_metrics`; by default every mean.

    Neither hook is called when there are no rows.

    Raises:
        InputError: a row has no valid key, or a reward is not finite.
    """
    table = RolloutTable()
    kept: list[Row] = []
    for row in verify_responses:
        table.add(row)
        if compute_metrics is not None:
            kept.append(row)
    own = compute_metrics(_by_task(kept)) if compute_metrics is not None and kept else {}
    return _combine(table, own, get_key_metrics if len(table) and get_key_metrics else means)


def aggregate_table(table: Rollouts) -> JsonObject:
    """Return the same from a table, with no environment's own metrics."""
    return _combine(table, {}, means)


def iter_group_metrics(table: Rollouts) -> Iterator[JsonObject]:
    """Yield the entries of `group_level_metrics` one by one, so that a large table's are never held whole."""
    from rollmill.metrics.groups import Groups

    return _task_rows(Groups(table))


def agent_metrics(table: Rollouts) -> JsonObject:
    """Return the statistics over all rollouts of a table."""
    from rollmill.metrics.groups import Groups

    return Groups(table).overall()


def means(metrics: JsonObject) -> JsonObject:
    """Return the default key metrics: every mean."""
    return {name: value for name, value in metrics.items() if name.startswith("mean/")}


def _combine(table: Rollouts, own: JsonObject, get_key_metrics: GetKeyMetrics) -> JsonObject:
    from rollmill.metrics.describe import defined
    from rollmill.metrics.groups import Groups

    groups = Groups(table)
    own = defined(own)
    per_task = {entry[TASK_INDEX]: entry for entry in own.pop(_PER_TASK, None) or ()}
    overall = {**groups.overall(), **own}
    return {
        "group_level_metrics": [{**row, **per_task.get(row[TASK_INDEX], {})} for row in _task_rows(groups)],
        "agent_metrics": overall,
        "key_metrics": defined(get_key_metrics(overall)),
    }


def _task_rows(groups: "Groups") -> Iterator[JsonObject]:
    from rollmill.metrics.groups import completion

    # No input rows are known here; this placeholder is what the wire format has in their place.
    return groups.tasks(lambda _, done: {"sample": {AGENT_REF: {"name": "agent"}}, **completion(done, done)})


def _by_task(rows: list[Row]) -> list[list[Row]]:
    tasks: dict[int, list[Row]] = {}
    for row in sorted(rows, key=row_key):
        tasks.setdefault(row[TASK_INDEX], []).append(row)
    return list(tasks.values())
