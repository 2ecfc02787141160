import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.artifacts.files import RunFiles
from rollmill.contracts.json import JsonValue
from rollmill.errors import InputError
from rollmill.export.metrics import read_metrics
from rollmill.export.mlflow import LONGEST_NAME, MlflowExporter, legal_names
from rollmill.export.run import export_run

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own, at import and when it makes its database


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One local store for all tests: to make its tables takes the library seconds."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.chdir(tmp_path_factory.mktemp("mlflow"))  # artifacts go to ./mlruns
        yield f"sqlite:///{Path.cwd()}/mlflow.db"


@pytest.fixture
def client(store: str) -> JsonValue:
    return __import__("mlflow").MlflowClient(tracking_uri=store)


def run_id(location: str) -> str:
    return location.rsplit(" ", 1)[1]


def test_every_metric_and_the_rollouts_file_are_in_the_store(files: RunFiles, store: str, client: JsonValue) -> None:
    report = export_run(files, MlflowExporter(store, experiment="evals"))

    run = client.get_run(run_id(report.location))
    expected = read_metrics(files)
    names = legal_names(expected)
    assert report.warnings == []
    assert run.data.metrics == {names[name]: value for name, value in expected.items()}
    assert run.data.metrics["solver/pass_at_2"] == 1.0
    assert run.data.metrics["solver/pass_hat_2"] == 0.5
    assert run.data.metrics["key_metrics/solver/mean/reward"] == 0.75
    stored = Path(client.download_artifacts(run.info.run_id, "rollouts/x.jsonl"))
    assert stored.read_bytes() == files.rollouts.read_bytes()


def test_the_run_is_named_tagged_and_finished(files: RunFiles, store: str, client: JsonValue) -> None:
    report = export_run(files, MlflowExporter(store, experiment="evals"))

    run = client.get_run(run_id(report.location))
    assert (run.info.run_name, run.info.status) == ("first-run", "FINISHED")
    assert run.data.tags["rollmill.run_id"] == "first-run"
    assert run.data.tags["rollmill.completed_rollouts"] == "4"
    assert client.get_experiment(run.info.experiment_id).name == "evals"


def test_rollouts_can_be_left_out(files: RunFiles, store: str, client: JsonValue) -> None:
    report = export_run(files, MlflowExporter(store), rollouts=False)

    assert client.list_artifacts(run_id(report.location)) == []


def test_an_existing_run_gets_a_further_step_and_stays_open(files: RunFiles, store: str, client: JsonValue) -> None:
    training = client.create_run(client.create_experiment("training")).info.run_id
    for step in (10, 20):
        report = export_run(files, MlflowExporter(store, run_id=training, step=step))
        assert report.warnings == []

    history = client.get_metric_history(training, "solver/pass_at_1")
    assert [(metric.step, metric.value) for metric in history] == [(10, 0.75), (20, 0.75)]
    assert client.get_run(training).info.status == "RUNNING"


def test_more_metrics_than_one_call_takes_are_all_logged(store: str, client: JsonValue, files: RunFiles) -> None:
    exporter = MlflowExporter(store, experiment="evals")
    exporter.open(__import__("rollmill.export", fromlist=["RunDetails"]).RunDetails("many"))
    exporter.log_metrics({f"m{number}": float(number) for number in range(2345)})
    exporter.close(complete=True)

    (run,) = client.search_runs([client.get_experiment_by_name("evals").experiment_id], "attributes.run_name = 'many'")
    assert len(run.data.metrics) == 2345
    assert math.fsum(run.data.metrics.values()) == 2345 * 2344 / 2


def test_what_the_library_refuses_is_a_warning_in_its_words(files: RunFiles, store: str) -> None:
    report = export_run(files, MlflowExporter(store, run_id="0" * 32))

    assert report.location == ""
    assert "Run with id=00000000000000000000000000000000 not found" in report.warnings[0]


def test_a_failed_step_marks_the_run_as_failed(files: RunFiles, store: str, client: JsonValue) -> None:
    class NoRollouts(MlflowExporter):
        def log_rollouts(self, rollouts: Path) -> None:
            super().log_rollouts(rollouts.with_name("gone.jsonl"))

    report = export_run(files, NoRollouts(store))

    assert client.get_run(run_id(report.location)).info.status == "FAILED"
    assert "gone.jsonl" in report.warnings[0]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow.tracking", None)

    with pytest.raises(InputError, match=r"pip install 'rollmill\[mlflow\]'"):
        MlflowExporter()


def test_nothing_can_be_logged_before_it_is_open(store: str) -> None:
    with pytest.raises(RuntimeError, match="open"):
        MlflowExporter(store).log_metrics({"a": 1.0})


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("agent/mean/reward", "agent/mean/reward"),
        ("agent/pass@4", "agent/pass_at_4"),
        ("agent/low/pass^4", "agent/low/pass_hat_4"),
        ("my agent/größe", "my agent/größe"),
        ("a:b/c?", "a_b/c_"),
        ("a//b/", "a/_/b/_"),
        ("/a", "_/a"),
        ("../a/./b", "__/a/_/b"),
    ],
)
def test_names_stay_readable_in_letters_that_the_library_takes(name: str, legal: str) -> None:
    assert legal_names([name]) == {name: legal}


def test_names_that_would_become_the_same_are_numbered() -> None:
    assert legal_names(["a?", "a!", "a_", "a__2"]) == {"a?": "a_", "a!": "a__2", "a_": "a__3", "a__2": "a__2_2"}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from("ab@^./ _-\n:é"), max_size=300), unique=True, max_size=8))
def test_all_names_are_legal_and_different(names: list[str]) -> None:
    check = pytest.importorskip("mlflow.utils.validation")

    legal = legal_names(names)

    assert list(legal) == names
    assert len(set(legal.values())) == len(names)
    for name in legal.values():
        check._validate_metric_name(name)
        assert len(name) <= LONGEST_NAME
