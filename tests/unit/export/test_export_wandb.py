import json
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.json import JsonValue
from rollmill.errors import InputError
from rollmill.export.metrics import read_metrics
from rollmill.export.run import export_run
from rollmill.export.wandb import WandbExporter

pytestmark = pytest.mark.filterwarnings("ignore")  # the library leaves folders and pipes to the garbage collector
API_KEY = "f00dfeed" * 5
FILE_HEADER, BLOCK = 7, 32_768
RECORD_HEADER = struct.Struct("<IHB")


@pytest.fixture(scope="module", autouse=True)
def wandb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JsonValue]:
    """The library, offline. It reads the environment once, and what it keeps running is stopped after the last test."""
    library = pytest.importorskip("wandb")
    folder = str(tmp_path_factory.mktemp("wandb"))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_DIR", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
            patch.setenv(name, folder)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_ERROR_REPORTING", "false")
        patch.setenv("WANDB_API_KEY", API_KEY)
        yield library
        library.teardown()


def transactions(data: bytes) -> Iterator[bytes]:
    """The whole records of an offline run's file: a LevelDB log, whose records may be cut at blocks of 32 KiB."""
    position, record = FILE_HEADER, b""
    while position + RECORD_HEADER.size <= len(data):
        if BLOCK - position % BLOCK < RECORD_HEADER.size:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = RECORD_HEADER.unpack_from(data, position)
        position += RECORD_HEADER.size
        if position + length > len(data):
            return
        record += data[position : position + length]
        position += length
        if kind in (1, 4):  # whole, or its last part
            yield record
            record = b""


def read(folder: str) -> list[JsonValue]:
    """What the library's own record type makes of an offline run. The last record is on disk soon after the end."""
    kind = pytest.importorskip("wandb.proto.wandb_internal_pb2").Record
    (path,) = Path(folder).glob("*.wandb")
    give_up = time.monotonic() + 30
    while True:
        records = [kind.FromString(record) for record in transactions(path.read_bytes())]
        if records and records[-1].HasField("exit"):
            return records
        assert time.monotonic() < give_up
        threading.Event().wait(0.02)


def history(records: list[JsonValue]) -> dict[str, JsonValue]:
    items = [item for record in records if record.HasField("history") for item in record.history.item]
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def table(folder: str) -> JsonValue:
    (path,) = Path(folder).rglob("rollouts*.table.json")
    return json.loads(path.read_bytes())


def test_every_metric_is_in_the_offline_run(files: RunFiles) -> None:
    report = export_run(files, WandbExporter(step=7))

    logged = history(read(report.location))
    expected = read_metrics(files)
    assert report.warnings == []
    assert {name: logged[name] for name in expected} == expected
    assert logged["solver/pass@2"] == 1.0
    assert logged["key_metrics/solver/mean/reward"] == 0.75
    assert logged["_step"] == 7


def test_rollouts_are_a_table(files: RunFiles) -> None:
    report = export_run(files, WandbExporter())

    found = table(report.location)
    assert found["columns"] == ["task", "rollout", "agent", "reward", "output_tokens", "prompt_text", "answer_text"]
    assert found["data"][1] == [0, 1, "solver", 0.0, 1, "question 0", "answer 0:1 | done"]
    assert len(found["data"]) == 4
    assert history(read(report.location))["rollouts/nrows"] == 4


def test_rollouts_that_differ_in_their_fields_make_one_table(files: RunFiles) -> None:
    lines = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1, "speed": 0.5},
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 0.5, "agent_ref": {"name": "solver"}},
    ]
    files.rollouts.write_text("".join(json.dumps(line) + "\n" for line in lines))

    report = export_run(files, WandbExporter())

    assert report.warnings == []
    assert table(report.location)["data"] == [[0, 0, None, 1, 0.5, "", ""], [1, 0, "solver", 0.5, None, "", ""]]


def test_rollouts_can_be_left_out(files: RunFiles) -> None:
    report = export_run(files, WandbExporter(), rollouts=False)

    assert [name for name in history(read(report.location)) if name.startswith("rollouts")] == []
    assert list(Path(report.location).rglob("*.table.json")) == []


def test_the_run_says_what_it_is(files: RunFiles) -> None:
    report = export_run(files, WandbExporter("project", entity="team", run_id="abc123"))

    records = read(report.location)
    (run,) = [record.run for record in records if record.HasField("run")][:1]
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.project, run.entity, run.display_name, run.run_id) == ("project", "team", "first-run", "abc123")
    assert (config["run_id"], config["completed_rollouts"]) == ("first-run", 4)
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


def test_nothing_of_the_machine_and_no_secret_is_recorded(files: RunFiles, tmp_path: Path) -> None:
    report = export_run(files, WandbExporter(folder=tmp_path / "wandb"))

    assert Path(report.location).is_relative_to(tmp_path)
    written = b"".join(path.read_bytes() for path in Path(report.location).rglob("*") if path.is_file())
    assert API_KEY.encode() not in written
    assert b"/somewhere/private" not in written
    recorded = [path.name for path in Path(report.location, "files").rglob("*") if path.is_file()]
    assert [name.split("_")[0] for name in recorded] == ["rollouts"]


def test_an_active_run_of_the_same_process_is_left_alone(files: RunFiles, wandb: JsonValue, tmp_path: Path) -> None:
    active = wandb.init(project="training", dir=str(tmp_path), settings=wandb.Settings(console="off", silent=True))
    try:
        report = export_run(files, WandbExporter(folder=tmp_path / "export"))

        assert wandb.run is active
        active.log({"loss": 0.5})
    finally:
        active.finish()

    assert "solver/mean/reward" not in history(read(active.settings.sync_dir))
    assert report.warnings == []


def test_what_the_library_refuses_is_a_warning_in_its_words(files: RunFiles) -> None:
    report = export_run(files, WandbExporter("no/slashes/please"))

    assert report.location == ""
    assert "invalid project name" in report.warnings[0].lower()


def test_a_failed_step_finishes_the_run_as_failed(files: RunFiles) -> None:
    files.rollouts.unlink()

    report = export_run(files, WandbExporter())

    exits = [record.exit.exit_code for record in read(report.location) if record.HasField("exit")]
    assert exits == [1]
    assert "x.jsonl" in report.warnings[0]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)

    with pytest.raises(InputError, match=r"pip install 'rollmill\[wandb\]'"):
        WandbExporter()


def test_nothing_can_be_logged_before_it_is_open() -> None:
    with pytest.raises(RuntimeError, match="open"):
        WandbExporter().log_metrics({"a": 1.0})
