from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.client.control import _Lines
from rollmill_services.collector import following
from rollmill_services.collector.following import _Reader


async def read(reader: _Reader) -> bytes:
    return b"".join([block async for block in reader.blocks()])


async def pieces(path: Path, reader: _Reader, writes: list[bytes]) -> AsyncIterator[bytes]:
    """Yield what the reader finds after each write."""
    for data in writes:
        with path.open("ab") as file:
            file.write(data)
        yield await read(reader)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BLOCK_BYTES", 5)


async def test_a_file_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert await read(_Reader(tmp_path / "x.jsonl", 0)) == b""


async def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    found = [piece async for piece in pieces(path, _Reader(path, 0), [b"aaaaaaa", b"bb\ncc", b"", b"c\n"])]

    assert found == [b"", b"aaaaaaabb\n", b"", b"ccc\n"]


async def test_lines_to_leave_out_may_come_later(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    found = [piece async for piece in pieces(path, _Reader(path, 2), [b"a\n", b"b\n", b"c\nd\n"])]

    assert found == [b"", b"", b"c\nd\n"]


LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"-")), max_size=8)


@given(lines=LINES, skip=st.integers(0, 10), cuts=st.lists(st.integers(0, 100), max_size=4))
@settings(max_examples=60)
async def test_any_lines_written_in_any_pieces_are_read_once_and_in_order(
    lines: list[bytes], skip: int, cuts: list[int]
) -> None:
    data = b"".join(line + b"\n" for line in lines)
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    writes = [data[start:end] for start, end in pairwise(borders)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.jsonl"
        found = [piece async for piece in pieces(path, _Reader(path, skip), writes)]

    assert b"".join(found) == b"".join(line + b"\n" for line in lines[skip:])
    assert all(piece.endswith(b"\n") for piece in found if piece)


@given(lines=LINES, size=st.integers(1, 20))
@settings(max_examples=60)
def test_a_client_cuts_chunks_of_any_size_into_the_same_lines(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"torn"
    cutter = _Lines()

    found = [line for start in range(0, len(data), size) for line in cutter.feed(data[start : start + size])]
    assert found == lines
