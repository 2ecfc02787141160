"""From the materialized rows of a run back to the tasks that they were made of."""

from collections.abc import Collection, Iterator
from pathlib import Path

from rollmill.artifacts.reader import iter_finished
from rollmill.artifacts.writer import replacing
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.rows import Row, RowKey, row_key
from rollmill.errors import InputError

_SHOWN = 10


def write_task_rows(inputs: Path, output: Path, tasks: Collection[int]) -> None:
    """Write the first input row of each task, in their order, as it was before it was expanded.

    Left out are the two indices and, where all rows of the run had it, the seed that `--add-seed` gave. What prompt,
    parameters and agent the run added stays.

    Args:
        inputs: materialized input rows.
        output: replaced when all is written.
        tasks: task indices.

    Raises:
        InputError: the inputs cannot be read, a line is no row with its keys, or a task has no row.
        StorageError: the output cannot be written.
    """
    seeded = _are_seeded(inputs)
    missing = set(tasks)
    with replacing(output) as file:
        for key, row in _keyed(inputs):
            if key.task not in missing:
                continue
            missing.remove(key.task)
            file.write(dumps(_unseeded(row) if seeded else row) + b"\n")
            if not missing:
                break
        if missing:
            raise InputError(f"{inputs}: {_listed(missing)}")


def _keyed(inputs: Path) -> Iterator[tuple[RowKey, Row]]:
    """Yield the rows with their keys taken out of them."""
    for number, (_, _, row) in enumerate(iter_finished(inputs), start=1):
        try:
            key = row_key(row)
        except ValueError as error:
            raise InputError(f"{inputs}: input row {number}: {error}") from None
        yield key, {name: value for name, value in row.items() if name not in (rows.TASK_INDEX, rows.ROLLOUT_INDEX)}


def _are_seeded(inputs: Path) -> bool:
    """Say whether the run gave each rollout its index as seed: one repeat alone cannot tell."""
    repeats = 0
    for key, row in _keyed(inputs):
        if _extra_body(row).get("seed") != key.rollout:
            return False
        repeats = max(repeats, key.rollout)
    return repeats > 0


def _unseeded(row: Row) -> Row:
    """Take the seed out of `metadata.extra_body`, and what is empty without it."""
    params, body = row[rows.PARAMS], _extra_body(row)
    del body["seed"]
    metadata = {name: value for name, value in params["metadata"].items() if name != "extra_body"}
    if body:
        metadata["extra_body"] = dumps(body).decode()
    rest = {name: value for name, value in params.items() if name != "metadata"}
    return {**row, rows.PARAMS: {**rest, "metadata": metadata} if metadata else rest}


def _extra_body(row: Row) -> JsonObject:
    params = row.get(rows.PARAMS)
    metadata = params.get("metadata") if isinstance(params, dict) else None
    text = metadata.get("extra_body") if isinstance(metadata, dict) else None
    try:
        body = loads(text) if isinstance(text, str) else None
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {}


def _listed(tasks: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(tasks)[:_SHOWN]))
    more = f" and {len(tasks) - _SHOWN} more" if len(tasks) > _SHOWN else ""
    return f"no input row of task {shown}{more}"
