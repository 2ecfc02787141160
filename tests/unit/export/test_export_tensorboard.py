from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.json import JsonValue
from rollmill.errors import InputError
from rollmill.export.exporter import RunDetails
from rollmill.export.metrics import read_metrics
from rollmill.export.run import export_run
from rollmill.export.tensorboard import TensorBoardExporter

pytest.importorskip("tensorboardX")
accumulation = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(folder: Path) -> JsonValue:
    """What TensorBoard itself reads from a run's folder."""
    found = accumulation.EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def text(events: JsonValue, tag: str) -> str:
    return str(events.Tensors(f"{tag}/text_summary")[0].tensor_proto.string_val[0].decode())


def test_every_metric_is_a_scalar_under_its_own_name(files: RunFiles, tmp_path: Path) -> None:
    report = export_run(files, TensorBoardExporter(tmp_path / "logs"))

    events = read(tmp_path / "logs" / "first-run")
    scalars = {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}
    assert scalars == pytest.approx(read_metrics(files))
    assert scalars["solver/pass@2"] == 1.0
    assert scalars["solver/pass^2"] == 0.5
    assert scalars["key_metrics/solver/mean/reward"] == 0.75
    assert report.location == str(tmp_path / "logs" / "first-run")
    assert report.warnings == []


def test_rollouts_are_a_table_of_text(files: RunFiles, tmp_path: Path) -> None:
    export_run(files, TensorBoardExporter(tmp_path))

    lines = text(read(tmp_path / "first-run"), "rollouts").splitlines()
    assert lines[0] == "4 of 4 rollouts"
    assert lines[2] == "| task | rollout | agent | reward | output_tokens | prompt_text | answer_text |"
    assert lines[4] == r"| 0 | 0 | solver | 1.0 | 0 | question 0 | answer 0:0 \| done |"
    assert len(lines) == 8


def test_rollouts_can_be_left_out(files: RunFiles, tmp_path: Path) -> None:
    export_run(files, TensorBoardExporter(tmp_path), rollouts=False)

    assert read(tmp_path / "first-run").Tags()["tensors"] == ["run/text_summary"]


def test_what_the_run_is_is_told_as_text(files: RunFiles, tmp_path: Path) -> None:
    export_run(files, TensorBoardExporter(tmp_path, name="named"))

    told = text(read(tmp_path / "named"), "run")
    assert "| run_id | first-run |" in told
    assert f"| input_sha256 | {'ab' * 32} |" in told


def test_exports_of_one_name_at_several_steps_are_one_curve(files: RunFiles, tmp_path: Path) -> None:
    for step in (0, 100):
        export_run(files, TensorBoardExporter(str(tmp_path), name="training", step=step))

    assert len(list((tmp_path / "training").iterdir())) == 2  # none overwrote the other, though within one second
    both = accumulation.EventAccumulator(str(tmp_path / "training"))
    both.Reload()
    steps = [event.step for event in both.Scalars("solver/pass@1")]
    assert steps == [0, 100]


def test_a_folder_that_cannot_be_made_is_a_warning(files: RunFiles, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")

    report = export_run(files, TensorBoardExporter(tmp_path / "taken"))

    assert report.location == ""
    assert report.metrics == 0
    assert "Not a directory" in report.warnings[0]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tensorboardX.event_file_writer", None)

    with pytest.raises(InputError, match=r"pip install 'rollmill\[tensorboard\]'"):
        TensorBoardExporter()


def test_nothing_can_be_logged_before_it_is_open() -> None:
    with pytest.raises(RuntimeError, match="open"):
        TensorBoardExporter().log_metrics({"a": 1.0})


def test_a_run_without_details_has_no_text(tmp_path: Path) -> None:
    exporter = TensorBoardExporter(tmp_path)
    exporter.open(RunDetails("bare"))
    exporter.log_metrics({"a": 1.0})
    exporter.close(complete=True)

    assert read(tmp_path / "bare").Tags()["tensors"] == []
