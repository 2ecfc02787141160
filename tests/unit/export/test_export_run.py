import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import rollmill.export
from rollmill.artifacts.files import RunFiles
from rollmill.errors import InputError
from rollmill.export import Exporter, RunDetails, export_run
from rollmill.export.redaction import redacted

LIBRARIES = ("wandb", "mlflow", "tensorboardX", "pandas", "numpy", "pyarrow")


class Recorder:
    """An exporter that keeps what it gets, and fails at one step if asked to."""

    title = "Recorder"

    def __init__(self, fails_at: str = "", error: BaseException | None = None) -> None:
        self.steps: list[str] = []
        self.run = RunDetails("")
        self.metrics: dict[str, float] = {}
        self._fails_at = fails_at
        self._error = error or RuntimeError("no space left there")

    def open(self, run: RunDetails) -> str:
        self.run = run
        self._step("open")
        return "https://user:s3cret@tracker/runs/1"

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)
        self._step("metrics")

    def log_rollouts(self, rollouts: Path) -> None:
        self._step(f"rollouts {rollouts.name}")

    def close(self, *, complete: bool) -> None:
        self._step(f"close {'complete' if complete else 'incomplete'}")

    def _step(self, step: str) -> None:
        self.steps.append(step)
        if self._fails_at and step.startswith(self._fails_at):
            raise self._error


def test_metrics_and_rollouts_are_sent_between_open_and_close(files: RunFiles) -> None:
    recorder = Recorder()
    exporter: Exporter = recorder

    report = export_run(files, exporter)

    assert recorder.steps == ["open", "metrics", "rollouts x.jsonl", "close complete"]
    assert recorder.metrics["solver/mean/reward"] == 0.75
    assert (report.metrics, report.rollouts, report.warnings) == (len(recorder.metrics), True, [])


def test_the_rollouts_can_be_left_out(files: RunFiles) -> None:
    recorder = Recorder()

    report = export_run(files, recorder, rollouts=False)

    assert recorder.steps == ["open", "metrics", "close complete"]
    assert not report.rollouts


def test_a_tracker_is_told_what_the_run_is_but_not_where_its_files_lie(files: RunFiles) -> None:
    recorder = Recorder()

    export_run(files, recorder)

    told = recorder.run.details
    assert recorder.run.name == "first-run"
    assert (told["run_id"], told["state"], told["completed_rollouts"]) == ("first-run", "finished", 4)
    assert (told["input"], told["input_sha256"]) == ("tasks.jsonl", "ab" * 32)
    assert "private" not in str(told)


def test_without_a_manifest_the_run_is_called_like_its_file(files: RunFiles) -> None:
    files.manifest.unlink()
    recorder = Recorder()

    export_run(files, recorder)

    assert recorder.run == RunDetails("x")


@pytest.mark.parametrize(
    ("fails_at", "steps", "told"),
    [
        ("open", ["open"], "begin"),
        ("metrics", ["open", "metrics", "rollouts x.jsonl", "close incomplete"], "log metrics"),
        ("rollouts", ["open", "metrics", "rollouts x.jsonl", "close incomplete"], "log rollouts"),
        ("close", ["open", "metrics", "rollouts x.jsonl", "close complete"], "close"),
    ],
)
def test_an_error_of_the_tracker_is_a_warning_in_its_own_words(
    files: RunFiles, fails_at: str, steps: list[str], told: str
) -> None:
    recorder = Recorder(fails_at)

    with capture_logs() as logs:
        report = export_run(files, recorder)

    assert recorder.steps == steps
    assert report.warnings == [f"Recorder: cannot {told}: no space left there"]
    assert report.metrics == (0 if fails_at in ("open", "metrics") else len(recorder.metrics))
    assert report.rollouts == (fails_at == "metrics" or fails_at == "close")
    assert logs == [
        {
            "log_level": "warning",
            "event": "export_failed",
            "tracker": "Recorder",
            "step": told,
            "error": "no space left there",
        }
    ]


def test_an_error_without_words_is_told_by_its_kind_and_a_long_one_is_cut(files: RunFiles) -> None:
    silent = export_run(files, Recorder("open", KeyError()))
    long = export_run(files, Recorder("open", RuntimeError("x" * 100_000)))

    assert silent.warnings == ["Recorder: cannot begin: KeyError"]
    assert len(long.warnings[0]) < 2100


def test_an_interrupt_is_no_warning_and_still_closes_what_was_begun(files: RunFiles) -> None:
    recorder = Recorder("metrics", KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        export_run(files, recorder)

    assert recorder.steps == ["open", "metrics", "close incomplete"]


def test_nothing_is_sent_of_a_run_with_broken_files(files: RunFiles) -> None:
    recorder = Recorder()
    files.aggregate_metrics.write_text("[")

    with pytest.raises(InputError, match=r"x_aggregate_metrics\.json"):
        export_run(files, recorder)

    assert recorder.steps == []


def test_rollouts_that_are_gone_are_a_warning_when_their_metrics_are_there(files: RunFiles) -> None:
    files.rollouts.unlink()

    class Reader(Recorder):
        def log_rollouts(self, rollouts: Path) -> None:
            rollouts.read_bytes()

    report = export_run(files, Reader())

    assert report.metrics == 4
    assert "No such file" in report.warnings[0]


def test_secrets_are_masked_in_all_that_is_told(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    error = RuntimeError("key 0123456789abcdef refused by https://me:pw@host/api")

    with capture_logs() as logs:
        report = export_run(files, Recorder("metrics", error))

    assert report.location == "https://**********@tracker/runs/1"
    assert report.warnings == [
        "Recorder: cannot log metrics: key ********** refused by https://**********@host/api",
    ]
    assert "0123456789abcdef" not in str(logs)
    assert "pw" not in str(logs)


def test_text_without_secrets_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "")

    assert redacted("http://host:5000/a@b c@d sqlite:///x.db") == "http://host:5000/a@b c@d sqlite:///x.db"


@pytest.mark.parametrize("name", rollmill.export.__all__)
def test_the_package_gives_every_name_it_lists(name: str) -> None:
    assert getattr(rollmill.export, name).__name__ == name


def test_no_tracker_library_and_no_pandas_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys, rollmill.cli.main, rollmill.export.wandb, rollmill.export.mlflow, rollmill.export.tensorboard, "
        f"rollmill.export.run; rollmill.cli.main.build_cli(); print([m for m in {LIBRARIES!r} if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
