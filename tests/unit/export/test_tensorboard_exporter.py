from collections.abc import Callable
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rollmill.export.exporter import ExportedRun
from rollmill.export.tensorboard_exporter import TensorboardExporter

MakeRun = Callable[..., ExportedRun]


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def text(events: EventAccumulator, tag: str) -> str:
    [event] = events.Tensors(f"{tag}/text_summary")
    return str(event.tensor_proto.string_val[0].decode())


def test_tensorboard_reads_back_what_was_exported(tmp_path: Path, make_run: MakeRun) -> None:
    place = TensorboardExporter(tmp_path).export(make_run(step=7))

    events = read(tmp_path / "first")
    found = {tag: [(point.step, point.value) for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert found == {
        "solver/mean/reward": [(7, 0.75)],
        "solver/pass_at_4": [(7, 0.875)],
        "solver/pass_hat_4": [(7, 0.5)],
        "solver/pass_at_4/lower": [(7, 0.25)],
        "key_metrics/solver/mean/reward": [(7, 0.75)],
    }
    assert text(events, "run") == "    input: tasks.jsonl"
    assert "    --- agent solver, task 0, rollout 1, reward 1.0" in text(events, "rollouts")
    assert str(tmp_path / "first") in place


def test_exporting_a_step_again_replaces_it_and_leaves_the_others(tmp_path: Path, make_run: MakeRun) -> None:
    exporter = TensorboardExporter(tmp_path)
    for step, value in ((0, 0.25), (1, 0.5), (0, 0.75)):
        exporter.export(make_run(step=step, metrics={"solver/m": value}))
    exporter.export(make_run(name="second"))

    points = [(point.step, point.value) for point in read(tmp_path / "first").Scalars("solver/m")]
    assert sorted(points) == [(0, 0.75), (1, 0.5)]


def test_what_a_model_wrote_stays_inside_a_code_block(tmp_path: Path, make_run: MakeRun) -> None:
    hostile = "![](https://example.org/x.png)\r\n# title\u2028<img src=x>\n\n[go](javascript:1)"
    TensorboardExporter(tmp_path).export(make_run(rollouts=[(hostile, 0, 0, None, True, None, hostile, hostile)]))

    lines = text(read(tmp_path / "first"), "rollouts").split("\n")
    assert len(lines) > 10
    assert [line for line in lines if not line.startswith("    ")] == []
    assert "\r" not in "".join(lines)


def test_rollouts_can_be_left_out(tmp_path: Path, make_run: MakeRun) -> None:
    TensorboardExporter(tmp_path).export(make_run(rollouts=[]))

    assert read(tmp_path / "first").Tags()["tensors"] == ["run/text_summary"]
