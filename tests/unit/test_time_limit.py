"""The cheap time limit does what `asyncio.timeout` does, case by case."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TypeAlias

import pytest

from rollmill.time_limit import time_limit

pytestmark = pytest.mark.both_loops

Limit: TypeAlias = Callable[[float | None], AbstractAsyncContextManager[object]]


@asynccontextmanager  # so that the same cases run with both
async def ours(seconds: float | None):  # type: ignore[no-untyped-def]
    with time_limit(seconds) as limit:
        yield limit


async def in_time(limit: Limit) -> str:
    async with limit(5):
        await asyncio.sleep(0)
    return "done"


async def no_limit(limit: Limit) -> str:
    async with limit(None):
        await asyncio.sleep(0.02)
    return "done"


async def too_late(limit: Limit) -> None:
    async with limit(0.01):
        await asyncio.sleep(5)


async def over_at_the_start(limit: Limit) -> None:
    async with limit(0):
        await asyncio.sleep(5)


async def inner_first(limit: Limit) -> str:
    async with limit(5):
        try:
            async with limit(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            await asyncio.sleep(0)
            return "inner"
    return "none"


async def outer_first(limit: Limit) -> str:
    try:
        async with limit(0.01):
            try:
                async with limit(5):
                    await asyncio.sleep(5)
            except TimeoutError:
                return "inner"
    except TimeoutError:
        return "outer"
    return "none"


async def both_at_once(limit: Limit) -> None:
    async with limit(0.01), limit(0.01):
        await asyncio.sleep(5)


async def own_error(limit: Limit) -> None:
    async with limit(0.01):
        try:
            await asyncio.sleep(5)
        finally:
            raise ValueError("while it was ended")


async def swallowed(limit: Limit) -> str:
    async with limit(0.01):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5)
    await asyncio.sleep(0)  # nothing is left of the cancellation
    return f"done, cancelling {asyncio.current_task().cancelling()}"  # type: ignore[union-attr]


async def cancelled_from_outside(limit: Limit) -> None:
    task = asyncio.current_task()
    asyncio.get_running_loop().call_later(0.01, task.cancel)  # type: ignore[union-attr]
    async with limit(5):
        await asyncio.sleep(5)


async def cancelled_and_expired(limit: Limit) -> None:
    task = asyncio.current_task()

    async with limit(0.01):
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            task.cancel()  # type: ignore[union-attr]
            raise


CASES: list[Callable[[Limit], Awaitable[object]]] = [
    *(in_time, no_limit, too_late, over_at_the_start, inner_first, outer_first, both_at_once, own_error, swallowed),
    *(cancelled_from_outside, cancelled_and_expired),
]


async def ended(case: Callable[[Limit], Awaitable[object]], limit: Limit) -> object:
    """Return what a case returns, or the kind of what it raises."""

    async def run() -> object:
        return await case(limit)

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return (type(error), type(error.__cause__), type(error.__context__)) if error else task.result()


@pytest.mark.parametrize("case", CASES)
async def test_every_case_ends_as_with_the_standard_librarys(case: Callable[[Limit], Awaitable[object]]) -> None:
    assert await ended(case, ours) == await ended(case, asyncio.timeout)


async def test_whether_it_expired_is_told() -> None:
    limit = time_limit(0.01)
    with pytest.raises(TimeoutError), limit:
        await asyncio.sleep(5)
    assert limit.expired
    with time_limit(5) as other:
        await asyncio.sleep(0)
    assert not other.expired
