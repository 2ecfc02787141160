"""`rollmill.collect`: the collection without files, for trainers."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rollmill.client.service_client import ServiceClient
from rollmill.collection.agent_runner import AgentRunner
from rollmill.collection.dispatcher import Dispatcher
from rollmill.collection.limiter import Limiter
from rollmill.collection.outcomes import Assignment, Completed, Failed
from rollmill.contracts import rows
from rollmill.contracts.failures import Failure
from rollmill.contracts.json import dumps
from rollmill.contracts.rows import Row, RowKey, agent_name, row_key
from rollmill.errors import InputError
from rollmill.ids import new_id


async def collect(
    tasks: Iterable[Row],
    *,
    topology: str | Path | None = None,
    head: str | None = None,
    token: str = "",
    agent: str | None = None,
    concurrency: int = 64,
    timeout_seconds: float = 3600.0,
    max_attempts: int = 3,
) -> AsyncIterator[tuple[Row, Row | Failure]]:
    """Run each row once and yield it with its verified row, or its failure, in order of completion.

    Retries, deadlines and failures are those of a run with files. Memory grows with `concurrency` only: rows are
    taken from the iterable as slots become free, and results wait for their reader. Leaving the loop early cancels
    what is in flight.

    Args:
        tasks: rows; those without `_ng_task_index` and `_ng_rollout_index` are numbered in order.
        topology: a topology file, whose services run inside this process.
        head: URL of a head instead, whose services are called over the network.
        token: bearer token for `head`.
        agent: agent of rows that name none.
        concurrency: most rollouts in flight, >= 1.
        timeout_seconds: for each attempt.
        max_attempts: attempts at one row, >= 1.

    Raises:
        InputError: a row names no agent or has a wrong index, a number is out of range, or not exactly one of
            `topology` and `head` is given.
    """
    if concurrency < 1 or max_attempts < 1 or not timeout_seconds > 0:
        raise InputError("concurrency and max_attempts must be at least 1, and timeout_seconds above 0")
    async with _client(topology, head, token) as client:
        results: asyncio.Queue[tuple[Row, Row | Failure]] = asyncio.Queue(maxsize=concurrency)
        runner = _Runner(client, timeout_seconds)
        dispatcher = Dispatcher(runner, _QueueSink(results), Limiter(concurrency), max_attempts=max_attempts)
        work = asyncio.create_task(dispatcher.run(_assignments(tasks, agent)))
        try:
            async for result in _drain(results, work):
                yield result
        finally:
            work.cancel()
            await asyncio.wait([work])


async def _drain(
    results: "asyncio.Queue[tuple[Row, Row | Failure]]", work: "asyncio.Task[None]"
) -> AsyncIterator[tuple[Row, Row | Failure]]:
    while not (work.done() and results.empty()):
        getter = asyncio.ensure_future(results.get())
        await asyncio.wait([getter, work], return_when=asyncio.FIRST_COMPLETED)
        if getter.done():
            yield getter.result()
        else:
            getter.cancel()
    try:
        await work
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class _Runner:
    """Makes each attempt under an idempotency key of its own: callers may give two rows the same indices."""

    def __init__(self, client: ServiceClient, timeout_seconds: float) -> None:
        self._client = client
        self._timeout = timeout_seconds

    async def attempt(self, assignment: Assignment, attempt: int) -> Completed | Failed:
        runner = AgentRunner(self._client, run_id=new_id("lib-"), timeout_seconds=self._timeout)
        return await runner.attempt(assignment, attempt)


class _QueueSink:
    def __init__(self, results: "asyncio.Queue[tuple[Row, Row | Failure]]") -> None:
        self._results = results

    async def completed(self, assignment: Assignment, outcome: Completed) -> None:
        await self._results.put((assignment.row, outcome.row))

    async def attempt_failed(self, assignment: Assignment, attempt: int, failed: Failed, *, given_up: bool) -> None:
        if given_up:
            await self._results.put((assignment.row, failed.failure))


async def _assignments(tasks: Iterable[Row], agent: str | None) -> AsyncIterator[Assignment]:
    for number, task in enumerate(tasks):
        row = {**task, **_indices(task, number)}
        if agent and agent_name(row) is None:
            row[rows.AGENT_REF] = {"name": agent}
        name = agent_name(row)
        if name is None:
            raise InputError(f"row {number} names no agent: give it an agent_ref, or name one with agent=")
        yield Assignment(_key(row, number), name, row, dumps(row))


def _indices(task: Row, number: int) -> Row:
    """What the row lacks; null counts as absent, as it does in a task file."""
    made = {rows.TASK_INDEX: number, rows.ROLLOUT_INDEX: 0}
    return {name: value for name, value in made.items() if task.get(name) is None}


def _key(row: Row, number: int) -> RowKey:
    try:
        return row_key(row)
    except ValueError as error:
        raise InputError(f"row {number}: {error}") from None


def _client(topology: str | Path | None, head: str | None, token: str) -> AbstractAsyncContextManager[ServiceClient]:
    from rollmill.client.links import open_client
    from rollmill.collection.embedded import embedded
    from rollmill.config.topology import load_topology

    if (topology is None) == (head is None):
        raise InputError("give exactly one of topology= and head=")
    if head is not None:
        return open_client(head, token)
    return embedded(load_topology(Path(str(topology))))
