import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wandb
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

from rollmill.contracts.json import JsonObject, loads
from rollmill.export.exporter import COLUMNS, ExportedRun
from rollmill.export.wandb_exporter import WandbExporter

MakeRun = Callable[..., ExportedRun]
BLOCK, FILE_HEADER, HEADER = 32768, 7, struct.Struct("<IHB")

pytestmark = pytest.mark.usefixtures("wandb_stopped")


def records(path: Path) -> Iterator[Record]:
    """Read an offline file: LevelDB's log format, whose chunks are full, first, middle or last (1 to 4)."""
    data, at, whole = path.read_bytes(), FILE_HEADER, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = HEADER.unpack_from(data, at)
        whole += data[at + HEADER.size : at + HEADER.size + size]
        at += HEADER.size + size
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


class Offline:
    """An offline run, as `wandb sync` would read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = self.project = ""
        self.config: JsonObject = {}
        self.history: list[JsonObject] = []
        self.summary: JsonObject = {}
        [path] = folder.glob("*.wandb")
        for record in records(path):
            self.take(record)

    def take(self, record: Record) -> None:
        if record.HasField("run"):
            self.id, self.project = record.run.run_id, record.run.project
        for update in record.config.update:
            self.config[update.key or "/".join(update.nested_key)] = loads(update.value_json)
        if record.HasField("history"):
            items = record.history.item
            self.history.append({item.key or "/".join(item.nested_key): loads(item.value_json) for item in items})
        for update in record.summary.update:
            self.summary[update.key or "/".join(update.nested_key)] = loads(update.value_json)


def offline_runs(directory: Path) -> list[Offline]:
    wandb.teardown()  # its process writes the last of a file when it ends
    return [Offline(folder) for folder in sorted((directory / "wandb").glob("offline-run-*"))]


def exporter(directory: Path, mode: str = "offline") -> WandbExporter:
    return WandbExporter("p", mode=mode, directory=directory)


def test_the_offline_file_holds_what_was_exported(tmp_path: Path, make_run: MakeRun) -> None:
    run = make_run(step=3)
    place = exporter(tmp_path / "here").export(run)

    [found] = offline_runs(tmp_path / "here")
    assert (found.id, found.project) == ("first", "p")
    assert (found.config["input"], found.config["state"]) == ("tasks.jsonl", "finished")
    [line] = [line for line in found.history if "solver/pass@4" in line]
    assert {name: line[name] for name in run.metrics} == run.metrics
    assert line["_step"] == 3
    assert {name: found.summary[name] for name in run.metrics} == run.metrics
    [table] = found.folder.rglob("*.table.json")
    assert loads(table.read_bytes())["columns"] == list(COLUMNS)
    assert loads(table.read_bytes())["data"] == [["solver", 0, 1, 1.0, False, 0.5, "How many?", "7"]]
    assert f"wandb sync {found.folder}" in place


def test_exporting_again_goes_on_with_the_same_run_and_says_so(tmp_path: Path, make_run: MakeRun) -> None:
    first = exporter(tmp_path).export(make_run(rollouts=[]))
    other = exporter(tmp_path).export(make_run(name="not-first", rollouts=[]))
    again = exporter(tmp_path).export(make_run(rollouts=[]))

    assert "earlier" not in first + other
    assert "earlier offline exports of it lie beside it" in again
    assert {run.id for run in offline_runs(tmp_path)} == {"first", "not-first"}
    assert list((tmp_path / "wandb").rglob("*.table.json")) == []


def test_nothing_of_this_machine_is_told(tmp_path: Path, make_run: MakeRun) -> None:
    exporter(tmp_path).export(make_run())

    told = {path.name for path in (tmp_path / "wandb").rglob("files/**/*") if path.is_file()}
    assert {name for name in told if not name.endswith(".table.json")} == set()
    assert told


def test_a_run_that_the_caller_has_open_stays_open(tmp_path: Path, make_run: MakeRun) -> None:
    own = wandb.init(project="own", mode="offline", dir=str(tmp_path), settings=wandb.Settings(silent=True))
    exporter(tmp_path / "other").export(make_run(rollouts=[]))

    assert wandb.run is own
    own.log({"still": 1})
    own.finish()


def test_disabled_is_said(tmp_path: Path, make_run: MakeRun) -> None:
    assert "disabled" in exporter(tmp_path, "disabled").export(make_run(rollouts=[]))
    assert not (tmp_path / "wandb").exists()
