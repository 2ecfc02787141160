from pathlib import Path

import pytest

from rollmill.artifacts.reader import iter_lines, read_jsonl, read_rollouts, whole_lines_size
from rollmill.errors import InputError


def write(folder: Path, content: bytes) -> Path:
    path = folder / "x.jsonl"
    path.write_bytes(content)
    return path


def test_blank_lines_and_carriage_returns_are_passed_over_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, b'\r\n{"a":1}\r\n\n   \n{"a":2}')

    assert list(iter_lines(path)) == [(2, b'{"a":1}'), (5, b'{"a":2}')]
    assert list(read_jsonl(path)) == [{"a": 1}, {"a": 2}]


def test_unicode_line_separators_inside_a_row_do_not_split_it(tmp_path: Path) -> None:
    path = write(tmp_path, '{"a":"x\u2028y\u0085z"}\n'.encode())

    assert list(read_jsonl(str(path))) == [{"a": "x\u2028y\u0085z"}]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"a":', "not valid JSON"),
        (b'{"a":NaN}', "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "must be a JSON object, got list"),
        (b"null", "must be a JSON object, got NoneType"),
    ],
)
def test_a_line_that_is_no_row_is_an_error_with_file_and_line(tmp_path: Path, line: bytes, words: str) -> None:
    path = write(tmp_path, b'{"a":1}\n\n' + line + b"\n")
    rows = read_jsonl(path)

    assert next(rows) == {"a": 1}
    with pytest.raises(InputError) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert words in str(caught.value)


def test_a_line_still_being_written_is_left_out_of_the_rollouts(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a":1}\r\n\n{"a":2}\n{"a":3}')

    assert list(read_rollouts(path)) == [{"a": 1}, {"a": 2}]


def test_a_file_of_one_torn_line_has_no_rollouts(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a":')

    assert list(read_rollouts(path)) == []
    assert whole_lines_size(path) == 0


def test_a_bad_line_before_the_tail_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.jsonl:1: not valid JSON"):
        list(read_rollouts(write(tmp_path, b'{"a":\n{"a":2}\n')))


@pytest.mark.parametrize("tail", [0, 1, 65535, 65536, 65537, 200_000])
def test_the_last_newline_is_found_behind_a_tail_of_any_length(tmp_path: Path, tail: int) -> None:
    path = write(tmp_path, b"ab\ncd\n" + b"x" * tail)

    assert whole_lines_size(path) == 6


def test_a_huge_line_is_one_row(tmp_path: Path) -> None:
    path = write(tmp_path, b'{"a":"' + b"y" * 20_000_000 + b'"}\n{"a":"z"}\n')

    assert [len(row["a"]) for row in read_rollouts(path)] == [20_000_000, 1]


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "gone.jsonl"

    assert whole_lines_size(path) == 0
    for read in (read_jsonl, read_rollouts):
        with pytest.raises(InputError, match=r"gone\.jsonl: No such file"):
            list(read(path))


def test_a_folder_is_an_error_that_names_it(tmp_path: Path) -> None:
    for read in (read_jsonl, read_rollouts):
        with pytest.raises(InputError, match="Is a directory"):
            list(read(tmp_path))
