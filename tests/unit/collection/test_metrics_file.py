import asyncio
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from rollmill.artifacts.columns import open_column_file
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.collection.metrics_file import MOST_ROLLOUTS, MetricsFile, complete_metrics_file, most_behind
from rollmill.contracts.json import dumps


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return RunFiles.at(tmp_path / "x.jsonl")


def append(files: RunFiles, first: int, count: int) -> None:
    rows = [{"_ng_task_index": i, "_ng_rollout_index": 0, "reward": 1.0} for i in range(first, first + count)]
    with files.rollouts.open("ab") as file:
        file.write(b"".join(dumps(row) + b"\n" for row in rows))


def covered(files: RunFiles) -> int:
    found = open_column_file(files, AnswerFields())
    return found.rows if found else 0


async def until_covered(files: RunFiles, rollouts: int) -> None:
    async with asyncio.timeout(60):
        while covered(files) < rollouts:  # noqa: ASYNC110  another process writes it
            await asyncio.sleep(0.05)


async def test_it_is_written_apart_when_it_is_too_far_behind(files: RunFiles) -> None:
    keeper = MetricsFile(files, fewest=10)
    append(files, 0, 9)
    keeper.keep_up(9)
    await asyncio.sleep(0)
    assert covered(files) == 0

    append(files, 9, 1)
    keeper.keep_up(10)
    keeper.keep_up(100)  # it is being written already
    await until_covered(files, 10)
    await keeper.stop()

    assert covered(files) == 10
    assert sorted(path.name for path in files.rollouts.parent.iterdir()) == ["x.jsonl", "x_metrics.parquet"]


def test_the_more_there_are_the_more_it_may_be_behind_up_to_a_limit() -> None:
    covered, written = 0, 0
    while covered < 5_000_000:
        covered += most_behind(covered)
        written += covered

    assert [most_behind(rollouts) for rollouts in (0, 100_000, 300_000)] == [100_000, 100_000, 150_000]
    assert most_behind(5_000_000) == MOST_ROLLOUTS
    assert written < 7 * covered  # how often each rollout is written, on average


async def test_stopping_leaves_no_unfinished_file_behind(files: RunFiles) -> None:
    append(files, 0, 30_000)
    keeper = MetricsFile(files, fewest=10)
    keeper.keep_up(30_000)
    await asyncio.sleep(0.3)

    await keeper.stop()

    left = {path.name for path in files.rollouts.parent.iterdir()}
    assert left in ({"x.jsonl"}, {"x.jsonl", "x_metrics.parquet"})
    assert covered(files) in (0, 30_000)


async def test_at_the_end_it_is_completed(files: RunFiles) -> None:
    append(files, 0, 5)

    await complete_metrics_file(files, rollouts=5)

    assert covered(files) == 5


async def test_at_the_end_of_a_long_run_another_process_completes_it(files: RunFiles) -> None:
    append(files, 0, 5)
    known = set(psutil.Process().children(recursive=True))
    started: set[psutil.Process] = set()

    completing = asyncio.create_task(complete_metrics_file(files, rollouts=5, fewest_apart=5))
    while not completing.done():
        started |= set(psutil.Process().children(recursive=True)) - known
        await asyncio.sleep(0.01)

    assert covered(files) == 5
    assert started


async def test_what_goes_wrong_is_only_logged(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.rollouts.write_bytes(b"{}\n")
    keeper = MetricsFile(files, fewest=1)

    with capture_logs() as told:
        await complete_metrics_file(files, rollouts=1)
        keeper.keep_up(1)
        async with asyncio.timeout(60):
            while len(told) < 2:  # noqa: ASYNC110  another process fails
                await asyncio.sleep(0.05)
        monkeypatch.setattr("sys.executable", "/no/such/python")
        await keeper.stop()
        keeper.keep_up(2)
        async with asyncio.timeout(60):
            while len(told) < 3:  # noqa: ASYNC110  it fails in a task of its own
                await asyncio.sleep(0.05)
        await keeper.stop()

    assert [entry["event"] for entry in told] == ["metrics_file_not_written"] * 3
    assert "_ng_task_index" in told[0]["error"]
    assert "_ng_task_index" in told[1]["error"]
    assert "No such file" in told[2]["error"]
