from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest, Scoring, Verifier, read_manifest
from rollmill.artifacts.reader import read_jsonl
from rollmill.collection.merging import Merged, find_shards, merge_shards
from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import AgentProgress
from rollmill.errors import ConflictError, InputError, RollmillError

DIGESTS = Digests(input="tasks", overrides="o", prompt="p", topology="t")
VERIFIER = Verifier(resources="words", name="m:Words", version="1", digest="d")


def row(task: int, index: int = 0, **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": "solver"}, **fields}


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


def shard(
    folder: Path, name: str, tasks: list[int], *, failed: list[int] | None = None, **manifest: object
) -> RunFiles:
    files = RunFiles.at(folder / "shards" / f"{name}.jsonl")
    write(files.inputs, [row(task, question=f"q{task}") for task in [*tasks, *(failed or [])]])
    write(files.rollouts, [row(task, reward=float(task % 2)) for task in reversed(tasks)])
    write(files.failures, [row(task, failure={"boundary": "model"}) for task in (failed or []) for _ in range(2)])
    values: JsonObject = {
        "run_id": name,
        "state": "finished",
        "digests": DIGESTS.model_copy(update={"input": name}),
        "counts": Counts(expected=len(tasks)),
        "agents": {"solver": AgentProgress(expected=len(tasks) + len(failed or []))},
        "verifiers": {"solver": VERIFIER},
        "scoring": {"solver": Scoring()},
        **manifest,
    }
    Manifest(**values).write(files.manifest)
    return files


def merge(folder: Path, **how: bool) -> Merged:
    output = folder / "merged.jsonl"
    return merge_shards(find_shards(str(folder / "shards" / "*.jsonl"), output), output, **how)


def keys(path: Path) -> list[int]:
    return [entry["_ng_task_index"] for entry in read_jsonl(path)]


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_files_of_the_shards_become_those_of_one_run(tmp_path: Path) -> None:
    shard(tmp_path, "a", [0, 1], failed=[7])
    shard(tmp_path, "b", [2, 3, 4])

    merged = merge(tmp_path)

    assert merged.warnings == []
    assert keys(merged.files.rollouts) == [1, 0, 4, 3, 2]
    assert keys(merged.files.inputs) == [0, 1, 7, 2, 3, 4]
    assert keys(merged.files.failures) == [7, 7]
    assert merged.files.rollouts.read_bytes().splitlines()[0] == dumps(row(1, reward=1.0))
    manifest = read_manifest(merged.files.manifest)
    assert manifest is not None
    assert (manifest.state, manifest.counts) == ("finished", Counts(expected=6, completed=5, failed=1))
    assert manifest.mean_reward == pytest.approx(0.4)
    assert manifest.agents["solver"].expected == 6
    assert manifest.verifiers == {"solver": VERIFIER}
    assert (manifest.digests.prompt, manifest.digests.topology) == ("p", "t")
    assert manifest.digests.input not in ("a", "b")


def test_the_same_shards_in_another_order_are_the_same_dataset(tmp_path: Path) -> None:
    for name, task in (("a", 0), ("b", 1), ("c", 2)):
        shard(tmp_path, name, [task])
    shards = find_shards(str(tmp_path / "shards" / "*.jsonl"), tmp_path / "m.jsonl")

    one = merge_shards(shards, tmp_path / "m.jsonl").manifest.digests
    other = merge_shards(shards[::-1], tmp_path / "n.jsonl").manifest.digests

    assert one == other


def test_only_rollouts_files_are_shards(tmp_path: Path) -> None:
    files = shard(tmp_path, "a", [0])
    write(files.reward_profiling, [row(0)])
    (tmp_path / "shards" / "notes.txt").write_text("x")
    (tmp_path / "shards" / "folder.jsonl").mkdir()
    shard(tmp_path, "deep_failures", [1])  # a run of its own: there is no run `deep`
    output = tmp_path / "shards" / "merged.jsonl"
    write(output, [row(9, reward=1.0)])

    found = find_shards(str(tmp_path / "shards" / "*.jsonl"), output)

    assert [shard.files.rollouts.name for shard in found] == ["a.jsonl", "deep_failures.jsonl"]
    assert [shard.files.rollouts.name for shard in find_shards(str(tmp_path / "**" / "a.jsonl"), output)] == ["a.jsonl"]
    with pytest.raises(InputError, match="no rollouts file matches"):
        find_shards(str(tmp_path / "none*.jsonl"), output)


def test_duplicate_keys_are_refused_with_the_first_ten_and_nothing_is_written(tmp_path: Path) -> None:
    shard(tmp_path, "a", list(range(12)))
    shard(tmp_path, "b", list(range(12)))
    before = everything(tmp_path)

    with pytest.raises(InputError) as caught:
        merge(tmp_path)

    assert "11:0 (b.jsonl), 10:0" in caught.value.detail
    assert caught.value.detail.count("b.jsonl") == 10
    assert "(12 in all)" in caught.value.detail
    assert everything(tmp_path) == before


def test_an_input_row_that_two_shards_share_is_written_once(tmp_path: Path) -> None:
    first = shard(tmp_path, "a", [0, 1])
    write(first.rollouts, [row(0, reward=1.0)])
    second = shard(tmp_path, "b", [1])  # graded again, with its input row

    merged = merge(tmp_path)

    assert keys(merged.files.inputs) == [0, 1]
    assert merged.manifest.counts == Counts(expected=2, completed=2)
    write(second.inputs, [row(1, question="another")])
    with pytest.raises(InputError, match=r"b_materialized_inputs.jsonl: another shard has another input row .* 1:0"):
        merge(tmp_path, overwrite=True)


def test_a_failure_whose_rollout_is_finished_elsewhere_is_no_failed_rollout(tmp_path: Path) -> None:
    shard(tmp_path, "a", [0], failed=[1])
    shard(tmp_path, "b", [1])

    merged = merge(tmp_path)

    assert merged.manifest.counts == Counts(expected=2, completed=2, failed=0)
    assert keys(merged.files.failures) == [1, 1]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"digests": DIGESTS.model_copy(update={"prompt": None})}, "the prompt config"),
        ({"digests": DIGESTS.model_copy(update={"overrides": "x"})}, "request parameters"),
        ({"digests": DIGESTS.model_copy(update={"topology": "x"})}, "the topology"),
        ({"verifiers": {"solver": VERIFIER.model_copy(update={"version": "2"})}}, "the verifier of solver (1 and 2)"),
        ({"verifiers": {"solver": VERIFIER.model_copy(update={"digest": "e"})}}, "the verifier of solver (its code)"),
        ({"verifiers": {"solver": Verifier(resources="sums")}}, "(words and sums)"),
        ({"scoring": {"solver": Scoring(answer_field=None)}}, "the score or answer fields of solver"),
    ],
)
def test_unlike_shards_are_refused_unless_forced(tmp_path: Path, change: JsonObject, told: str) -> None:
    shard(tmp_path, "a", [0])
    shard(tmp_path, "b", [1], **change)

    with pytest.raises(ConflictError) as caught:
        merge(tmp_path)

    assert told in caught.value.detail
    assert "b.jsonl" in caught.value.detail
    assert not (tmp_path / "merged.jsonl").exists()
    merged = merge(tmp_path, force=True)
    assert keys(merged.files.rollouts) == [0, 1]
    assert any(told in warning for warning in merged.warnings)


def test_what_does_not_make_shards_unlike(tmp_path: Path) -> None:
    shard(tmp_path, "a", [0])
    renamed = VERIFIER.model_copy(update={"resources": "renamed"})
    shard(tmp_path, "b", [1], digests=DIGESTS.model_copy(update={"topology": None}), verifiers={"solver": renamed})
    shard(tmp_path, "c", [2], verifiers={"other": Verifier(resources="x")}, rollmill_version="0.0.0")

    merged = merge(tmp_path)

    assert [warning.partition(" differ in ")[2][:18] for warning in merged.warnings] == ["Rollmill's version"]
    assert set(merged.manifest.verifiers) == {"solver", "other"}


def test_shards_without_manifests_are_merged_with_a_warning(tmp_path: Path) -> None:
    for name, task in (("a", 0), ("b", 1)):
        files = shard(tmp_path, name, [task])
        files.manifest.unlink()
        files.inputs.unlink()
        files.failures.unlink()

    merged = merge(tmp_path)

    assert len(merged.warnings) == 2
    assert "a.jsonl has no manifest" in merged.warnings[0]
    assert (merged.manifest.state, merged.manifest.counts) == ("finished", Counts(expected=2, completed=2))
    assert merged.files.inputs.read_bytes() == merged.files.failures.read_bytes() == b""


def test_a_shard_that_was_interrupted_leaves_an_interrupted_run(tmp_path: Path) -> None:
    shard(tmp_path, "a", [0])
    shard(tmp_path, "b", [1], state="interrupted", agents={"solver": AgentProgress(expected=5)})

    merged = merge(tmp_path)

    assert (merged.manifest.state, merged.manifest.counts) == ("interrupted", Counts(expected=6, completed=2))
    assert "is interrupted" in merged.warnings[0]


def test_torn_last_lines_are_ignored_and_whole_ones_are_not(tmp_path: Path) -> None:
    files = shard(tmp_path, "a", [0, 1])
    other = shard(tmp_path, "b", [2, 3])
    files.rollouts.write_bytes(files.rollouts.read_bytes()[:-5])
    other.rollouts.write_bytes(other.rollouts.read_bytes()[:-1])

    merged = merge(tmp_path)

    assert keys(merged.files.rollouts) == [1, 3, 2]
    assert merged.files.rollouts.read_bytes().endswith(b"\n")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"{]\n", "b.jsonl:2: not valid JSON"),
        (b"[1]\n", "b.jsonl:2: a row must be a JSON object"),
        (b'{"reward": 1.0}\n', "_ng_task_index must be an integer"),
        (dumps(row(5)) + b"\n", "the reward of 5:0 must be a finite number"),
        (dumps(row(5, reward="high")) + b"\n", "the reward of 5:0 must be a finite number"),
    ],
)
def test_a_damaged_shard_says_where(tmp_path: Path, line: bytes, told: str) -> None:
    shard(tmp_path, "a", [0])
    files = shard(tmp_path, "b", [1])
    files.rollouts.write_bytes(files.rollouts.read_bytes() + line)

    with pytest.raises(RollmillError) as caught:
        merge(tmp_path)

    assert told in caught.value.detail
    assert "b.jsonl" in caught.value.detail


def test_a_run_that_is_there_is_kept_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    shard(tmp_path, "a", [0])
    first = merge(tmp_path)
    first.files.aggregate_metrics.write_text("old")
    before = everything(tmp_path)

    with pytest.raises(ConflictError, match="--overwrite"):
        merge(tmp_path)
    assert everything(tmp_path) == before

    shard(tmp_path, "b", [1])
    assert keys(merge(tmp_path, overwrite=True).files.rollouts) == [0, 1]
    assert not first.files.aggregate_metrics.exists()


def test_a_shard_is_never_written_over(tmp_path: Path) -> None:
    shard(tmp_path, "a", [0])
    shards = find_shards(str(tmp_path / "shards" / "a.jsonl"), tmp_path / "m.jsonl")

    with pytest.raises(InputError, match="one of the files that the run writes"):
        merge_shards(shards, tmp_path / "shards" / "a.jsonl", overwrite=True)
