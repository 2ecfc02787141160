from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from rollmill.contracts.json import loads
from rollmill.export.exporter import COLUMNS, ExportedRun
from rollmill.export.mlflow_exporter import MlflowExporter

MakeRun = Callable[..., ExportedRun]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


def runs(uri: str, experiment: str = "p") -> list[Run]:
    client = MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id]))


def test_mlflow_reads_back_what_was_exported(uri: str, make_run: MakeRun, tmp_path: Path) -> None:
    place = MlflowExporter("p", tracking_uri=uri).export(make_run(step=3))

    [run] = runs(uri)
    assert run.data.metrics == {
        "solver/mean/reward": 0.75,
        "solver/pass_at_4": 0.875,
        "solver/pass_hat_4": 0.5,
        "solver/pass_at_4_lower": 0.25,
        "key_metrics/solver/mean/reward": 0.75,
    }
    assert run.data.params == {"input": "tasks.jsonl"}
    assert (run.info.run_name, run.info.status, run.data.tags["rollmill.run"]) == ("first", "FINISHED", "first")
    client = MlflowClient(tracking_uri=uri)
    [artifact] = Path(client.get_run(run.info.run_id).info.artifact_uri or "").iterdir()
    assert loads(artifact.read_bytes())["columns"] == list(COLUMNS)
    assert loads(artifact.read_bytes())["data"] == [["solver", 0, 1, 1.0, False, 0.5, "How many?", "7"]]
    assert run.info.run_id in place


def test_exporting_again_neither_doubles_the_run_nor_its_points(uri: str, make_run: MakeRun) -> None:
    exporter = MlflowExporter("p", tracking_uri=uri)
    exporter.export(make_run(state="running", metrics={"solver/m": 0.25}))
    exporter.export(make_run(step=5, params={"input": "other", "new": "1"}, metrics={"solver/m": 0.5, "solver/n": 1.0}))
    exporter.export(make_run(state="running", metrics={"solver/m": 0.25}, rollouts=[]))
    exporter.export(make_run(name="second", metrics={"solver/m": 1.0}))

    second, first = sorted(runs(uri), key=lambda run: run.data.params.get("new", ""))
    points = MlflowClient(tracking_uri=uri).get_metric_history(first.info.run_id, "solver/m")
    assert [(point.step, point.value) for point in points] == [(0, 0.25), (5, 0.5)]
    assert first.data.params == {"input": "tasks.jsonl", "new": "1"}
    assert (first.info.status, first.data.tags["rollmill.state"]) == ("RUNNING", "running")
    assert second.data.metrics == {"solver/m": 1.0}


def test_a_store_of_files_takes_the_same_run(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    MlflowExporter("p", tracking_uri=uri).export(make_run())

    [run] = runs(uri)
    assert (run.data.metrics["solver/pass_at_4"], run.data.metrics["solver/pass_at_4_lower"]) == (0.875, 0.25)


def test_more_metrics_than_mlflow_takes_at_once_are_all_there(uri: str, make_run: MakeRun) -> None:
    metrics = {f"solver/m{number}": float(number) for number in range(1001)}
    params = {f"p{number}": str(number) for number in range(101)}
    MlflowExporter("p", tracking_uri=uri).export(make_run(metrics=metrics, params=params, rollouts=[]))

    [run] = runs(uri)
    assert run.data.metrics == metrics
    assert run.data.params == params
