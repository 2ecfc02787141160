import re
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from rollmill.export.exporter import COLUMNS, ExportedRun
from rollmill.export.names import portable_name

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run
    from mlflow.tracking import MlflowClient

RUN_TAG: Final = "rollmill.run"
"""Tells which run of MLflow is which run of Rollmill: it holds the name."""
_STATE_TAG: Final = "rollmill.state"
_PARAMS_AT_ONCE: Final = 100
_METRICS_AT_ONCE: Final = 1000
_STATUS: Final = {"running": "RUNNING", "paused": "RUNNING", "cancelled": "KILLED", "failed": "FAILED"}
_BOUND: Final = re.compile(r"/(lower|upper)$")

Item = TypeVar("Item")


class MlflowExporter:
    """Writes runs to a store or server of MLflow.

    Args:
        experiment: its name; made when it does not exist.
        tracking_uri: such as `sqlite:///mlflow.db` or `https://mlflow.example.org`.
    """

    def __init__(self, experiment: str, *, tracking_uri: str) -> None:
        self._experiment = experiment
        self._tracking_uri = tracking_uri

    def export(self, run: ExportedRun) -> str:
        """Write a run into the one that an earlier export of it made. Params keep their first value: MLflow says so."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=self._tracking_uri)
        tracked = self._run(client, run.name)
        run_id = tracked.info.run_id
        params = {portable_name(name): value for name, value in run.params.items()}
        new = [Param(name, value) for name, value in params.items() if name not in tracked.data.params]
        for some in _chunks(new, _PARAMS_AT_ONCE):
            client.log_batch(run_id, params=some, synchronous=True)
        for points in _chunks(_new_points(client, tracked, run), _METRICS_AT_ONCE):
            client.log_batch(run_id, metrics=points, synchronous=True)
        if run.rollouts:
            table = {"columns": list(COLUMNS), "data": [list(line) for line in run.rollouts]}
            client.log_dict(run_id, table, "rollouts.json")
        client.set_tag(run_id, _STATE_TAG, run.state)
        client.update_run(run_id, status=_STATUS.get(run.state, "FINISHED"))
        return f"run {run_id} of experiment {self._experiment!r}"

    def _run(self, client: "MlflowClient", name: str) -> "Run":
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._experiment)
        # A name is a run id, which holds no quotes.
        earlier = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{name}'", max_results=1)
        return earlier[0] if earlier else client.create_run(experiment, run_name=name, tags={RUN_TAG: name})


def mlflow_name(name: str) -> str:
    """Return a metric's name in MLflow; bounds are `pass_at_4_lower`, as a file store can have no `pass_at_4/lower`."""
    return portable_name(_BOUND.sub(r"_\1", name))


def _new_points(client: "MlflowClient", tracked: "Run", run: ExportedRun) -> "list[Metric]":
    """Return the points that the history of their metric does not have yet: MLflow would show them twice."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    named = {mlflow_name(name): value for name, value in run.metrics.items()}
    return [
        Metric(name, value, now, run.step)
        for name, value in named.items()
        if name not in tracked.data.metrics or (run.step, value) not in _points(client, tracked, name)
    ]


def _points(client: "MlflowClient", tracked: "Run", name: str) -> set[tuple[int, float]]:
    return {(point.step, point.value) for point in client.get_metric_history(tracked.info.run_id, name)}


def _chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
