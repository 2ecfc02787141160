"""How rewards came in over time. It imports numpy: import this module inside functions only."""

from collections.abc import Iterator

import numpy as np

from rollmill.artifacts.column_arrays import Columns, Floats
from rollmill.artifacts.columns import RunColumns
from rollmill.artifacts.row_access import RowFile
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD, TIMING, Row


def timeline(run: RunColumns, *, buckets: int, agent: str | None = None) -> JsonObject:
    """Cut the finished rollouts, in order of completion, into pieces of about the same number.

    Args:
        run: the rollouts.
        buckets: most pieces, at least 1.
        agent: only rollouts of this agent.

    Returns:
        `began_at`, when the first rollout was begun, in Unix seconds, and `buckets`: of each, `rollouts`, their
        `mean_reward` and `output_tokens`, and `until`, when its last rollout ended. Null stands for what is unknown.
    """
    columns = run.columns if agent is None else run.columns.of_agent(agent)
    with RowFile(run.path) as rows:
        first = rows.at(int(columns.offsets[0])) if len(columns) else {}
        return {"began_at": _times(first)[0], "buckets": list(_buckets(columns, rows, buckets))}


def _buckets(columns: Columns, rows: RowFile, buckets: int) -> Iterator[JsonObject]:
    nothing = np.full(len(columns), np.nan)
    rewards, tokens = (columns.fields.get(name, nothing) for name in (REWARD, "output_tokens"))
    for part in np.array_split(np.arange(len(columns)), min(buckets, max(len(columns), 1))):
        if len(part):
            yield {
                "rollouts": len(part),
                "mean_reward": _mean(rewards[part]),
                "output_tokens": _total(tokens[part]),
                "until": _times(rows.at(int(columns.offsets[part[-1]])))[1],
            }


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _total(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.sum()) if len(known) else None


def _times(row: Row) -> tuple[float | None, float | None]:
    """Return when a rollout was begun and when it ended."""
    timing = row.get(TIMING)
    told = timing if isinstance(timing, dict) else {}
    begun, seconds = told.get("started_at"), told.get("seconds")
    if not isinstance(begun, int | float):
        return None, None
    return begun, begun + seconds if isinstance(seconds, int | float) else None
