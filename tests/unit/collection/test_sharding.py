"""A run in parts: every task in one of them, and all of them together the run that is not parted."""

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.manifest import Digests
from rollmill.collection.expansion import Expansion, expand, survey
from rollmill.collection.shard_parts import ShardParts
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row, row_key
from rollmill.contracts.shards import ShardNumber
from rollmill.errors import InputError

AGENTS = ("x", "y")


def task(text: str, agent: str) -> JsonObject:
    return {"responses_create_params": {"input": text}, "agent_ref": {"name": agent}}


generated = st.builds(task, st.sampled_from("abcdefgh"), st.sampled_from(AGENTS))
numbered = st.builds(lambda row, own: {**row, "_ng_task_index": own}, generated, st.integers(0, 12))
lines = st.lists(st.one_of(generated, numbered), min_size=1, max_size=20)
repeats = st.one_of(
    st.integers(1, 4), st.fixed_dictionaries({"x": st.integers(1, 3), "_default": st.integers(1, 3)}), st.none()
)


def of_agent(rows: list[Row]) -> dict[str, int]:
    names = [row["agent_ref"]["name"] for row in rows]
    return {name: names.count(name) for name in set(names)}


@given(lines, repeats, st.booleans(), st.one_of(st.none(), st.integers(1, 20)), st.integers(1, 9))
@settings(max_examples=200)
def test_the_shards_are_the_unsharded_rows_each_once_and_no_task_is_parted(
    rows: list[JsonObject], num_repeats: int | dict[str, int] | None, add_seed: bool, limit: int | None, count: int
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole = Expansion(num_repeats=num_repeats, add_seed=add_seed, limit=limit)
        shards = [replace(whole, shard=ShardNumber(index, count)) for index in range(count)]
        if fault := fault_of(path, whole):  # a line brings its number too late; then every shard says so
            assert [fault_of(path, shard) for shard in shards] == [fault] * count
            return
        found = [survey(path, shard) for shard in shards]
        parts = [list(expand(path, shard)) for shard in shards]
        unsharded, surveyed = list(expand(path, whole)), survey(path, whole)

    assert sorted((row for part in parts for row in part), key=row_key) == sorted(unsharded, key=row_key)
    tasks = [{row["_ng_task_index"] for row in part} for part in parts]
    assert sum(map(len, tasks)) == len(set().union(*tasks))
    assert [one.rollouts for one in found] == [of_agent(part) for part in parts]
    assert {one.digest for one in found} == {surveyed.digest}
    assert all(one.warnings == surveyed.warnings for one in found)


def fault_of(path: Path, expansion: Expansion) -> str:
    try:
        survey(path, expansion)
    except InputError as error:
        return str(error)
    return ""


def test_a_shard_keeps_the_order_of_the_whole(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task(text, "x")) + "\n" for text in "abcde"))

    rows = expand(path, Expansion(num_repeats=2, shard=ShardNumber(1, 2)))

    assert [row["responses_create_params"]["input"] for row in rows] == list("bbdd")


def digests(*shards: str | None) -> list[Digests]:
    return [Digests(input="i", overrides="o", shard=shard) for shard in shards]


def test_parts_tell_what_is_missing_and_join_what_is_joined_already() -> None:
    parts = ShardParts.of(digests("0/4", "2/4"))
    assert parts is not None
    assert (str(parts), parts.missing) == ("0,2/4", [1, 3])

    joined = ShardParts.of(digests(str(parts), "1/4", "3/4"))
    assert joined is not None
    assert (str(joined), joined.missing) == ("0,1,2,3/4", [])


def test_runs_without_a_number_or_of_other_counts_are_no_parts() -> None:
    assert ShardParts.of([]) is None
    assert ShardParts.of(digests(None, None)) is None
    assert ShardParts.of(digests("0/2", None)) is None
    assert ShardParts.of(digests("0/2", "1/3")) is None
    assert ShardParts.of(digests("5d41402abc4b2a76", "5d41402abc4b2a76")) is None
