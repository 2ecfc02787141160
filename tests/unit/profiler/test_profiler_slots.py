import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from rollmill.context import CallContext, reset_context, set_context
from rollmill.errors import DeadlineError, InputError
from rollmill_services.profiler.slots import Slots


class Gate:
    """Work that waits in its thread until it is let through, and counts how many are at it."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.at_work = self.most = 0

    def __call__(self) -> str:
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        self._open.wait(timeout=30)
        with self._lock:
            self.at_work -= 1
        return "done"

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


async def until_at_work(gate: Gate, count: int) -> None:
    async with asyncio.timeout(10):
        while gate.at_work < count:  # noqa: ASYNC110 (a thread cannot set an asyncio event)
            await asyncio.sleep(0.001)


async def test_only_so_many_run_at_once_and_the_rest_wait(gate: Gate) -> None:
    slots = Slots(2, timeout_seconds=60)
    calls = [asyncio.create_task(slots.run(gate)) for _ in range(5)]
    await until_at_work(gate, 2)
    for _ in range(20):
        await asyncio.sleep(0.001)  # the loop is free while the threads are at work
    assert slots.waiting == 3

    gate.open()

    assert [await call for call in calls] == ["done"] * 5
    assert gate.most == 2
    assert slots.waiting == 0


async def test_an_error_of_the_work_is_the_callers() -> None:
    def fail() -> None:
        raise InputError("no")

    slots = Slots(1, timeout_seconds=60)

    for _ in range(2):
        with pytest.raises(InputError, match="no"):
            await slots.run(fail)


async def test_a_caller_that_gives_up_does_not_free_the_slot_before_the_thread_ends(gate: Gate) -> None:
    slots = Slots(1, timeout_seconds=60)
    first = asyncio.create_task(slots.run(gate))
    await until_at_work(gate, 1)
    first.cancel()
    await asyncio.wait([first])

    second = asyncio.create_task(slots.run(gate))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert gate.most == 1
    gate.open()

    assert await second == "done"
    assert gate.most == 1


async def test_neither_the_wait_nor_the_work_takes_longer_than_allowed(gate: Gate) -> None:
    slots = Slots(1, timeout_seconds=0.05)

    for _ in range(2):  # the first one works too long, the second one waits too long for it
        with pytest.raises(DeadlineError, match="not ready"):
            await slots.run(gate)
    gate.open()


async def test_the_callers_own_deadline_is_kept(gate: Gate) -> None:
    slots = Slots(1, timeout_seconds=60)
    token = set_context(CallContext(deadline=time.monotonic() + 0.05))
    try:
        with pytest.raises(DeadlineError):
            await slots.run(gate)
    finally:
        reset_context(token)
        gate.open()
