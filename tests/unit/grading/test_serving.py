from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollmill.grading.serving import LIMIT
from rollmill.grading.text import without_surrogates
from rollmill.grading.workers import WorkerPool

PROGRAM = """
import os, resource
from rollmill.grading.serving import serve

def answer(request):
    print("a library says something")
    os.write(1, b'{"forged": true}\\n')
    if request.get("much"):
        try:
            bytes(8 * 1024**3)
        except MemoryError:
            return {"refused": True}
    return {"doubled": 2 * request["number"]}

serve(answer)
"""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[WorkerPool]:
    program = tmp_path / "doubling_worker.py"
    program.write_text(PROGRAM)
    workers = WorkerPool(program, count=1, timeout_seconds=30.0)
    yield workers
    await workers.stop()


async def test_requests_are_answered_in_order_and_prints_are_no_answers(pool: WorkerPool) -> None:
    replies = [await pool.ask({"number": number, LIMIT: 30.0}) for number in range(3)]

    assert replies == [{"doubled": 0}, {"doubled": 2}, {"doubled": 4}]


async def test_the_memory_of_a_worker_is_bounded(pool: WorkerPool) -> None:
    assert await pool.ask({"number": 1, "much": True, LIMIT: 30.0}) == {"refused": True}


def test_half_a_surrogate_becomes_a_question_mark() -> None:
    assert without_surrogates("a\ud800b\udfff") == "a?b?"
    assert without_surrogates("ä🙂") == "ä🙂"
