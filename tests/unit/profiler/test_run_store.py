import sys
from pathlib import Path

import pytest

from rollmill.artifacts.manifest import Digests, Manifest
from rollmill.artifacts.run_store import RunStore
from rollmill.errors import InputError, RunNotFoundError


def start(manifest: Path) -> None:
    Manifest(run_id="r", digests=Digests(input="", overrides="")).write(manifest)


def test_a_run_lives_in_a_folder_of_its_own(tmp_path: Path) -> None:
    start(tmp_path / "a" / "rollouts_manifest.json")

    files = RunStore(tmp_path).files("a")

    assert files.rollouts == tmp_path / "a" / "rollouts.jsonl"
    assert files.inputs == tmp_path / "a" / "rollouts_materialized_inputs.jsonl"


def test_a_run_of_the_command_line_is_found_by_its_name(tmp_path: Path) -> None:
    start(tmp_path / "x_manifest.json")

    assert RunStore(tmp_path).files("x").rollouts == tmp_path / "x.jsonl"


def test_a_folder_wins_over_a_file_of_the_same_name(tmp_path: Path) -> None:
    start(tmp_path / "x_manifest.json")
    start(tmp_path / "x" / "rollouts_manifest.json")

    assert RunStore(tmp_path).files("x").rollouts.parent.name == "x"
    assert RunStore(tmp_path).runs() == ["x"]


def test_a_folder_that_is_no_run_does_not_hide_a_run_of_its_name(tmp_path: Path) -> None:
    start(tmp_path / "x_manifest.json")
    (tmp_path / "x").mkdir()

    assert RunStore(tmp_path).files("x").rollouts == tmp_path / "x.jsonl"


def test_a_folder_without_a_manifest_is_a_run_that_was_not_started(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    store = RunStore(tmp_path)

    assert store.files("new").rollouts == tmp_path / "new" / "rollouts.jsonl"
    assert store.runs() == []


def test_runs_of_both_layouts_are_listed_and_nothing_else(tmp_path: Path) -> None:
    start(tmp_path / "b" / "rollouts_manifest.json")
    start(tmp_path / "a_manifest.json")
    start(tmp_path / "not an id_manifest.json")
    start(tmp_path / "_manifest.json")
    (tmp_path / "c_manifest.json").mkdir()
    (tmp_path / "tasks.jsonl").write_text("{}\n")

    assert RunStore(tmp_path).runs() == ["a", "b"]


def test_a_data_directory_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "none")

    assert store.runs() == []
    with pytest.raises(RunNotFoundError, match="no run is called 'x'"):
        store.files("x")
    assert not store.data_dir.exists()


@pytest.mark.parametrize("run_id", ["", "..", "../x", "a/b", ".hidden", "a b", "x\n", "x" * 129])
def test_an_id_that_could_lead_elsewhere_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(InputError, match="no run id"):
        RunStore(tmp_path).files(run_id)


def test_paths_inside_the_data_directory_are_resolved(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "sub")

    assert store.resolve("x.jsonl") == tmp_path.resolve() / "x.jsonl"
    assert store.resolve("./sub/x.jsonl") == tmp_path.resolve() / "sub" / "x.jsonl"
    assert store.resolve(str(tmp_path / "x.jsonl")) == tmp_path.resolve() / "x.jsonl"
    assert store.resolve("link/x.jsonl") == tmp_path.resolve() / "sub" / "x.jsonl"


def test_a_relative_data_directory_is_meant_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert RunStore(Path("results")).resolve("x.jsonl") == tmp_path.resolve() / "results" / "x.jsonl"


def test_paths_that_lead_out_are_refused_with_the_fix(tmp_path: Path) -> None:
    data, outside = tmp_path / "data", tmp_path / "outside"
    data.mkdir()
    outside.mkdir()
    (data / "link").symlink_to(outside)
    (data / "file.jsonl").symlink_to(outside / "secret.jsonl")
    paths = ["..", "../outside/x.jsonl", "a/../x.jsonl", str(outside / "x.jsonl"), "link/x.jsonl", "file.jsonl"]

    for path in [*paths, "", ".", str(data), f"{data}-other/x.jsonl"]:
        with pytest.raises(InputError, match="put the file there and name it relative to that"):
            RunStore(data).resolve(path)


def test_paths_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no usable path"):
        RunStore(tmp_path).resolve("a\0b")


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the loop is left to whoever opens the file")
def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")

    with pytest.raises(InputError, match="no usable path"):
        RunStore(tmp_path).resolve("a/x.jsonl")
