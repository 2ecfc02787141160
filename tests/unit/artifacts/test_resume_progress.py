from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.resume import read_progress
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rows import RowKey, row_key
from rollmill.errors import InputError

Event = tuple[RowKey, str]
events = st.tuples(
    st.builds(RowKey, st.integers(0, 2), st.integers(0, 1)), st.sampled_from(["completed", "failed", "terminal"])
)


def line(key: RowKey, **fields: object) -> bytes:
    row: JsonObject = {"_ng_task_index": key.task, "_ng_rollout_index": key.rollout, **fields}
    return dumps(row) + b"\n"


def write(files: RunFiles, history: list[Event]) -> None:
    with files.rollouts.open("wb") as rollouts, files.failures.open("wb") as failures:
        for key, what in history:
            if what == "completed":
                rollouts.write(line(key, reward=1.0))
            else:
                failures.write(line(key, _ng_failure_class="x", _ng_failure_terminal=what == "terminal"))


def possible(history: list[Event], max_attempts: int) -> list[Event]:
    """Leave out what cannot happen: anything more about a rollout that is settled."""
    kept: list[Event] = []
    for key, what in history:
        before = [w for k, w in kept if k == key]
        if not {"completed", "terminal"} & set(before) and len(before) < max_attempts:
            kept.append((key, what))
    return kept


@given(st.lists(events, max_size=30), st.integers(1, 4))
@settings(max_examples=120)
def test_progress_is_what_counting_by_hand_says(told: list[Event], max_attempts: int) -> None:
    history = possible(told, max_attempts)
    with TemporaryDirectory() as folder:
        files = RunFiles.at(Path(folder) / "x.jsonl")
        write(files, history)
        progress = read_progress(files, max_attempts=max_attempts)

    by_key = {key: [what for other, what in history if other == key] for key, _ in history}
    completed = {key for key, whats in by_key.items() if "completed" in whats}
    failed = {
        key
        for key, whats in by_key.items()
        if key not in completed and ("terminal" in whats or len(whats) >= max_attempts)
    }
    assert set(progress.done) == completed | failed
    assert (progress.completed, progress.failed) == (len(completed), len(failed))
    assert {k: n for k, n in progress.attempts.items() if k not in progress.done} == {
        key: len(whats) for key, whats in by_key.items() if key not in completed | failed
    }


TORN = (b"", b"{", b'{"_ng_task_index":0,"_ng_rollout_index":0,"rew', b'{"_ng_task_index":0,"_ng_rollout_index":1}')
"""What a crash may leave at the end of a file: nothing without a newline counts, not even a whole row."""


@given(st.lists(events, max_size=30), st.integers(1, 4), st.sampled_from(TORN), st.sampled_from(TORN))
@settings(max_examples=150)
def test_done_is_completed_or_terminal_or_out_of_attempts_whatever_the_order_and_the_torn_tails(
    history: list[Event], max_attempts: int, rollouts_tail: bytes, failures_tail: bytes
) -> None:
    with TemporaryDirectory() as folder:
        files = RunFiles.at(Path(folder) / "x.jsonl")
        write(files, history)
        for path, tail in ((files.rollouts, rollouts_tail), (files.failures, failures_tail)):
            path.write_bytes(path.read_bytes() + tail)
        told: list[RowKey] = []
        progress = read_progress(
            files, max_attempts=max_attempts, on_failed_attempt=lambda row: told.append(row_key(row))
        )

    completed = {key for key, what in history if what == "completed"}
    terminal = {key for key, what in history if what == "terminal"}
    failures = Counter(key for key, what in history if what != "completed")
    used_up = {key for key, number in failures.items() if number >= max_attempts}
    assert set(progress.done) == completed | terminal | used_up
    assert progress.completed == len(completed)
    assert progress.failed == len((terminal | used_up) - completed)
    assert progress.attempts == {key: number for key, number in failures.items() if key not in set(progress.done)}
    assert Counter(told) == failures


def test_no_files_are_no_progress(tmp_path: Path) -> None:
    progress = read_progress(RunFiles.at(tmp_path / "x.jsonl"), max_attempts=3)

    assert (len(progress.done), progress.completed, progress.failed, progress.attempts) == (0, 0, 0, {})


def test_torn_last_lines_do_not_count(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    files.rollouts.write_bytes(line(RowKey(0, 0), reward=1) + line(RowKey(0, 1), reward=1)[:-1])
    files.failures.write_bytes(line(RowKey(1, 0), _ng_failure_terminal=True)[:-5])

    assert set(read_progress(files, max_attempts=3).done) == {RowKey(0, 0)}


def test_each_settled_rollout_is_told_once(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    again, lost = RowKey(0, 0), RowKey(0, 1)
    write(files, [(again, "completed"), (again, "completed"), (lost, "failed"), (lost, "failed"), (lost, "failed")])
    done: list[int] = []
    given_up: list[int] = []
    read_progress(
        files,
        max_attempts=2,
        on_rollout=lambda row: done.append(row["_ng_rollout_index"]),
        on_given_up=lambda row: given_up.append(row["_ng_rollout_index"]),
    )

    assert (done, given_up) == ([0], [1])


@pytest.mark.parametrize("index", ["null", "-1", "1.5", "true", '"0"'])
@pytest.mark.parametrize("name", ["x.jsonl", "x_failures.jsonl"])
def test_a_line_without_a_key_is_an_error_with_file_and_line(tmp_path: Path, name: str, index: str) -> None:
    bad = f'{{"_ng_task_index":0,"_ng_rollout_index":{index}}}\n'
    (tmp_path / name).write_bytes(line(RowKey(0, 0)) + bad.encode())

    with pytest.raises(InputError, match=rf"{name}:2: .*_ng_rollout_index must be an integer >= 0"):
        read_progress(RunFiles.at(tmp_path / "x.jsonl"), max_attempts=3)
