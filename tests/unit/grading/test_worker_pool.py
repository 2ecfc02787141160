import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rollmill.errors import NotReadyError
from rollmill.grading.workers import WorkerPool

PROGRAM = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
served = 0
for line in sys.stdin:
    request = json.loads(line)
    if request.get("hang"):
        time.sleep(60)
    if request.get("die") == "always":
        os._exit(1)
    if request.get("die") and not os.path.exists(request["die"]):
        open(request["die"], "w").close()
        os._exit(1)
    served += 1
    reply = {"echo": request.get("echo"), "pid": os.getpid(), "served": served, "variables": sorted(os.environ)}
    print(json.dumps(reply), flush=True)
"""

MakePool = Callable[..., Awaitable[WorkerPool]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "echo_worker.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
async def make_pool(program: Path) -> AsyncIterator[MakePool]:
    async with AsyncExitStack() as stack:

        async def make(*, count: int = 1, timeout_seconds: float = 20.0, path: Path = program) -> WorkerPool:
            pool = WorkerPool(path, count=count, timeout_seconds=timeout_seconds, start_timeout_seconds=20.0)
            stack.push_async_callback(pool.stop)
            return pool

        yield make


async def test_a_request_is_answered_and_the_process_is_kept(make_pool: MakePool) -> None:
    pool = await make_pool()
    await pool.start()

    first, second = await pool.ask({"echo": "a"}), await pool.ask({"echo": "b\n"})

    assert first is not None
    assert second is not None
    assert (first["echo"], second["echo"]) == ("a", "b\n")
    assert first["pid"] == second["pid"]
    assert second["served"] == 2


async def test_a_worker_sees_nothing_of_the_environment(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_TOKEN", "secret")
    reply = await (await make_pool()).ask({})

    assert reply is not None
    assert "ROLLMILL_TOKEN" not in reply["variables"]


async def test_many_callers_share_few_processes(make_pool: MakePool) -> None:
    pool = await make_pool(count=2)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pool.ask({"echo": number})) for number in range(20)]
    replies = [task.result() or {} for task in tasks]

    assert [reply["echo"] for reply in replies] == list(range(20))
    assert 1 <= len({reply["pid"] for reply in replies}) <= 2


async def test_a_request_beyond_the_limit_has_no_answer_and_its_process_is_replaced(make_pool: MakePool) -> None:
    pool = await make_pool(timeout_seconds=2.0)
    before = await pool.ask({})

    assert await pool.ask({"hang": True}) is None

    after = await pool.ask({"echo": "fresh"})
    assert before is not None
    assert after is not None
    assert after["echo"] == "fresh"
    assert after["pid"] != before["pid"]


async def test_a_process_that_dies_is_replaced_and_the_request_tried_once_more(
    make_pool: MakePool, tmp_path: Path
) -> None:
    reply = await (await make_pool()).ask({"echo": 1, "die": str(tmp_path / "died")})

    assert reply is not None
    assert reply["echo"] == 1


async def test_a_request_that_kills_every_process_has_no_answer(make_pool: MakePool) -> None:
    pool = await make_pool()

    assert await pool.ask({"die": "always"}) is None
    assert await pool.ask({"echo": 2}) is not None


async def test_a_cancelled_request_does_not_leave_its_answer_to_the_next_one(make_pool: MakePool) -> None:
    pool = await make_pool()
    await pool.start()
    waiting = asyncio.create_task(pool.ask({"hang": True}))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    reply = await pool.ask({"echo": "next"})

    assert reply is not None
    assert reply["echo"] == "next"


async def test_a_program_that_cannot_start_is_an_error(make_pool: MakePool, tmp_path: Path) -> None:
    broken = tmp_path / "broken_worker.py"
    broken.write_text("raise SystemExit(3)")
    pool = await make_pool(path=broken)

    with pytest.raises(NotReadyError, match=r"broken_worker\.py"):
        await pool.start()
    with pytest.raises(NotReadyError):
        await pool.ask({})


async def test_a_stopped_pool_may_stop_again_and_serves_again(make_pool: MakePool) -> None:
    pool = await make_pool()
    await pool.ask({})
    await pool.stop()
    await pool.stop()

    assert await pool.ask({"echo": "again"}) is not None
