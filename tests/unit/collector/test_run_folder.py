from pathlib import Path

import pytest

from rollmill.artifacts.run_store import RunStore
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.runs import RunRequest
from rollmill.errors import ConflictError, InputError, RunNotFoundError
from rollmill_services.collector.folder import RunFolder, accepted_runs

ROWS: list[JsonObject] = [{"q": 1, "r": [1.5]}, {"q": 2}]


def request(**fields: JsonValue) -> RunRequest:
    return RunRequest.model_validate({"id": "a", "rows": ROWS, **fields})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path)


@pytest.fixture
def folder(store: RunStore) -> RunFolder:
    return RunFolder(store, "a")


def test_a_request_is_read_back_without_its_rows(folder: RunFolder) -> None:
    folder.write(request(num_repeats={"x": 2}, params={"k": [1]}, resume=True), None)

    assert folder.exists()
    assert folder.request() == request(rows=None, num_repeats={"x": 2}, params={"k": [1]})
    assert (folder.path / "input.jsonl").read_text() == '{"q":1,"r":[1.5]}\n{"q":2}\n'


def test_the_plan_reads_inline_rows_an_upload_or_a_path_and_can_be_resumed(store: RunStore) -> None:
    (store.data_dir / "sub").mkdir(parents=True)
    (store.data_dir / "sub" / "tasks.jsonl").touch()
    cases = [(ROWS, None, None), (None, None, b'{"q":1}\n'), (None, "sub/tasks.jsonl", None)]
    for number, (rows, path, uploaded) in enumerate(cases):
        folder = RunFolder(store, f"r{number}")
        wanted = request(rows=rows, input=path, concurrency=3, prompt={"user": "{q}"})
        folder.write(wanted, uploaded)
        plan = folder.plan(folder.request(), "digest")

        own = folder.path / "input.jsonl"
        assert plan.input == (store.data_dir / "sub" / "tasks.jsonl" if path else own)
        assert own.exists() is (path is None)
        assert (plan.run_id, plan.resume, plan.overwrite, plan.topology_digest) == (f"r{number}", True, False, "digest")
        assert plan.options.concurrency == 3
        assert plan.prompt is not None
        assert plan.output == folder.path / "rollouts.jsonl"


@pytest.mark.parametrize(
    ("fields", "uploaded"),
    [({"rows": None}, None), ({"input": "x.jsonl"}, None), ({}, b"{}\n"), ({"rows": None, "input": "x"}, b"")],
)
def test_tasks_come_from_exactly_one_source(folder: RunFolder, fields: JsonObject, uploaded: bytes | None) -> None:
    with pytest.raises(InputError, match="exactly one"):
        folder.write(request(**fields), uploaded)
    assert not folder.path.exists()


@pytest.mark.parametrize(
    "same",
    [
        {"concurrency": 2, "timeout_seconds": 5.0, "name": "other", "resume": True},
        {"rows": [{"r": [1.5], "q": 1}, {"q": 2}]},  # the order of keys says nothing
    ],
)
def test_how_fast_a_run_goes_is_no_content(folder: RunFolder, same: JsonObject) -> None:
    folder.write(request(), None)

    folder.check_same(request(**same), None)


@pytest.mark.parametrize(
    "other",
    [
        {"rows": list(reversed(ROWS))},
        {"rows": ROWS[:1]},
        {"rows": [{"q": 12}]},
        {"num_repeats": 2},
        {"params": {"k": 1}},
        {"prompt": {"user": "x"}},
        {"limit": 1},
        {"rows": None, "input": "x.jsonl"},
    ],
)
def test_other_content_is_a_conflict(folder: RunFolder, other: JsonObject) -> None:
    folder.write(request(), None)

    with pytest.raises(ConflictError, match="another run called 'a'"):
        folder.check_same(request(**other), None)


def test_another_upload_is_a_conflict(folder: RunFolder) -> None:
    folder.write(request(rows=None), b"{}\n")

    folder.check_same(request(rows=None), b"{}\n")
    with pytest.raises(ConflictError):
        folder.check_same(request(rows=None), b"{} \n")


def test_a_discarded_run_leaves_nothing(folder: RunFolder, store: RunStore) -> None:
    folder.write(request(), None)
    assert list(accepted_runs(store)) == ["a"]
    folder.discard()

    assert list(accepted_runs(store)) == []
    assert not folder.path.exists()
    folder.discard()


def test_discarding_spares_files_of_others(folder: RunFolder) -> None:
    folder.write(request(), None)
    (folder.path / "notes.txt").write_text("mine")
    folder.discard()

    assert [path.name for path in folder.path.iterdir()] == ["notes.txt"]


def test_a_run_without_a_request_is_not_found(folder: RunFolder) -> None:
    with pytest.raises(RunNotFoundError):
        folder.request()
    with pytest.raises(RunNotFoundError):
        folder.unbegun()


def test_a_run_that_has_not_begun_is_interrupted(folder: RunFolder) -> None:
    folder.write(request(), None)

    status = folder.unbegun()
    assert (status.run_id, status.state, status.expected, status.completed) == ("a", "interrupted", 0, 0)
