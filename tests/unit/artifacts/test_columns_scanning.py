"""Reading stretches of files, here and in processes."""

from io import BytesIO
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from rollmill.artifacts import scanning
from rollmill.artifacts.chunks import Chunk
from rollmill.artifacts.column_arrays import Columns, columns_of, joined
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.artifacts.scan import Stretch, lines_for, read_stretch
from rollmill.artifacts.scan_worker import LENGTH_BYTES, serve
from rollmill.artifacts.scanning import scan
from rollmill.contracts.json import dumps
from rollmill.errors import InputError


def line(index: int, text: str = "") -> bytes:
    row = {"_ng_task_index": index, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}, "reward": index / 8}
    return dumps({**row, "question": text, "extracted_answer": f"{index % 3}"}) + b"\n"


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def read(path: Path, *, start: int = 0, processes: int | None = None) -> Columns:
    with scan(path, start=start, processes=processes) as chunks:
        return joined(map(columns_of, chunks))


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "rollmill.artifacts.scan_worker" in child.cmdline()]


@pytest.fixture
def small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "STRETCH_BYTES", 20_000)
    monkeypatch.setattr(scanning, "PARALLEL_BYTES", 0)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([b"\n", b" \n", line(1), line(2, "x" * 50), line(3, "é" * 9)])), st.integers(1, 97))
def test_every_line_is_in_exactly_one_stretch(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], step: int
) -> None:
    path = write(tmp_path_factory.mktemp("scan") / "x.jsonl", *lines)
    size = path.stat().st_size

    parts = [
        columns_of(chunk)
        for start in range(0, size, step)
        for stretch in [Stretch(str(path), start, min(start + step, size), size)]
        for chunk in read_stretch(stretch, lines_for(stretch))
    ]

    content = path.read_bytes()
    columns = joined(parts)
    assert [content[offset:].split(b"\n")[0] + b"\n" for offset in columns.offsets] == [x for x in lines if x.strip()]


@pytest.mark.usefixtures("small_stretches")
def test_processes_give_what_one_process_gives(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(line(i, "x" * (i % 200)) for i in range(2000)), line(2000)[:-1])

    with capture_logs() as told:
        here, there = read(path, processes=1), read(path, processes=3)

    assert told == []
    assert here.tasks.tolist() == there.tasks.tolist() == list(range(2001))
    assert here.offsets.tolist() == there.offsets.tolist()
    assert here.fields["reward"].tolist() == there.fields["reward"].tolist()
    assert here.answers.names == there.answers.names == ["0", "1", "2"]
    assert here.answers.codes.tolist() == there.answers.codes.tolist()
    assert here.end == there.end == path.stat().st_size


@pytest.mark.usefixtures("small_stretches")
@pytest.mark.parametrize("processes", [1, 2])
def test_the_first_wrong_line_is_named(tmp_path: Path, processes: int) -> None:
    lines = [line(i, "x" * 100) for i in range(1000)]
    lines[700], lines[900] = b'{"reward": 1}\n', b"[]\n"
    path = write(tmp_path / "x.jsonl", b"\n", *lines)

    with pytest.raises(InputError, match=r"x\.jsonl:702: _ng_task_index must be an integer"):
        read(path, processes=processes)


@pytest.mark.usefixtures("small_stretches")
def test_a_process_that_is_killed_is_done_without(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(line(i, "x" * 100) for i in range(2000)))

    with capture_logs() as told, scan(path, processes=2) as chunks:
        first = next(chunks)
        for process in workers():
            process.kill()
        rest = list(chunks)

    assert sum(chunk.count for chunk in [first, *rest]) == 2000
    assert {entry["event"] for entry in told} == {"reading_process_failed"}


@pytest.mark.usefixtures("small_stretches")
def test_without_processes_it_is_read_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.jsonl", *(line(i, "x" * 100) for i in range(500)))
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))

    assert len(read(path, processes=2)) == 500


@pytest.mark.usefixtures("small_stretches")
def test_a_reader_that_stops_early_leaves_no_process_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(line(i, "x" * 100) for i in range(3000)))

    with scan(path, processes=2) as chunks:
        assert next(chunks).count > 0

    assert workers() == []


@pytest.mark.parametrize(
    ("end", "tasks"),
    [(b'{"_ng_task_index": 2, "_ng_rol', [1]), (line(2)[:-1], [1, 2]), (b'{"text": "\xc3', [1]), (b"  ", [1])],
)
def test_a_last_line_counts_when_it_is_whole(tmp_path: Path, end: bytes, tasks: list[int]) -> None:
    path = write(tmp_path / "x.jsonl", line(1), end)

    columns = read(path)

    assert columns.tasks.tolist() == tasks
    assert columns.end == len(line(1)) + (len(end) if len(tasks) == 2 else 0)


def test_what_is_appended_while_it_is_read_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", line(1), line(2)[:-1])

    with scan(path) as chunks, path.open("ab") as file:
        file.write(b"\n" + line(3))
        file.flush()
        columns = joined(map(columns_of, chunks))

    assert columns.tasks.tolist() == [1, 2]
    assert read(path, start=columns.end).tasks.tolist() == [3]


def test_lines_of_10_megabytes_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", *(line(i, "x" * 10_000_000) for i in range(3)), line(3))

    assert read(path).tasks.tolist() == [0, 1, 2, 3]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.jsonl: No such file"), scan(tmp_path / "none.jsonl"):
        pass
    with pytest.raises(InputError, match=r"Is a directory"), scan(tmp_path) as chunks:
        list(chunks)


def test_an_empty_file_has_no_rollouts(tmp_path: Path) -> None:
    assert len(read(write(tmp_path / "x.jsonl"))) == 0


def test_a_stretch_and_its_chunks_travel_between_processes(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", line(0), line(1))
    stretch = Stretch(str(path), 0, path.stat().st_size, path.stat().st_size, "rollouts", AnswerFields({"a": None}))
    answers = BytesIO()
    serve(BytesIO(msgspec.json.encode(stretch) + b"\n"), answers)

    data = answers.getvalue()
    length = int.from_bytes(data[:LENGTH_BYTES])
    chunk = msgspec.msgpack.decode(data[LENGTH_BYTES : LENGTH_BYTES + length], type=Chunk)
    assert (chunk.count, chunk.answers.names, chunk.agents.names) == (2, [], ["a"])
    assert data[LENGTH_BYTES + length :] == bytes(LENGTH_BYTES)
