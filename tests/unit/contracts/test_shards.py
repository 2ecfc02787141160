from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollmill.contracts.runs import RunOptions
from rollmill.contracts.shards import MAX_SHARDS, ShardNumber


@given(st.integers(1, 50), st.integers(0, 10**12))
def test_every_task_is_in_exactly_one_shard(count: int, task: int) -> None:
    assert [ShardNumber(index, count).takes(task) for index in range(count)].count(True) == 1


@given(st.integers(0, MAX_SHARDS - 1), st.integers(1, MAX_SHARDS))
def test_a_number_is_read_as_it_is_written_and_only_in_range(index: int, count: int) -> None:
    text = f"{index}/{count}"
    if index < count:
        assert str(ShardNumber.parse(text)) == text
    else:
        with pytest.raises(
            ValueError, match=rf"{text} is out of range: the shards are 0/{count} to {count - 1}/{count}"
        ):
            ShardNumber.parse(text)


@pytest.mark.parametrize(
    "text", ["", "1", "1/", "/4", "-1/4", "1/4/2", "a/b", "1 / 4", "١/٤", "0/0", "0/1000000", "1.0/2"]
)
def test_what_is_no_shard_is_refused_with_an_example_or_the_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 0/4 for the first of four|there can be 1 to 100000 shards"):
        ShardNumber.parse(text)


def test_options_hold_a_shard_in_its_one_spelling() -> None:
    assert RunOptions(shard="003/04").shard == "3/4"
    with pytest.raises(ValidationError, match="4/4 is out of range"):
        RunOptions(shard="4/4")


def test_outputs_sort_as_their_shards_do() -> None:
    outputs = [str(ShardNumber(index, 12).output(Path("results/x.y.jsonl"))) for index in range(12)]

    assert outputs[:2] == ["results/x.y-00000-of-00012.jsonl", "results/x.y-00001-of-00012.jsonl"]
    assert sorted(outputs) == outputs
