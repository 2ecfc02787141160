import re
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from rollmill.export.exporter import RunDetails, load_library

BATCH: Final = 1000
"""Most metrics that a tracking server takes at once."""
LONGEST_NAME: Final = 250
ARTIFACT_FOLDER: Final = "rollouts"

_READABLE: Final = {"@": "_at_", "^": "_hat_"}
_ILLEGAL: Final = re.compile(r"[^\w. -]")


class _Client(Protocol):
    """What is used of `mlflow.MlflowClient`; results are plain values of its own classes."""

    tracking_uri: str

    def log_batch(self, run_id: str, *, metrics: object = ..., tags: object = ...) -> object: ...
    def log_artifact(self, run_id: str, local_path: str, artifact_path: str | None = None) -> None: ...
    def set_terminated(self, run_id: str, status: str | None = None) -> None: ...


class MlflowExporter:
    """Exports to MLflow: a run with the metrics, and the rollouts file as an artifact.

    MLflow allows no `@` and `^` in names: `pass@4` becomes `pass_at_4`, `pass^4` becomes `pass_hat_4`.

    Args:
        tracking_uri: a server, or a local store such as `sqlite:///mlflow.db`; the library's default when None.
        experiment: made when it is not there.
        name: shown for the run; its run id in Rollmill when None.
        run_id: go on with this run, and leave it open, instead of making one.
        step: of all metrics; rises along a training.

    Raises:
        InputError: the library is not installed.
    """

    title = "MLflow"

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment: str = "rollmill",
        name: str | None = None,
        run_id: str | None = None,
        step: int = 0,
    ) -> None:
        self._tracking = load_library("mlflow.tracking", extra="mlflow")
        self._entities = load_library("mlflow.entities", extra="mlflow")
        self._uri = tracking_uri
        self._experiment = experiment
        self._name = name
        self._given_run_id = run_id
        self._step = step
        self._client: _Client | None = None
        self._run_id = ""

    def open(self, run: RunDetails) -> str:
        """Make or find the run; returns the tracking URI and the run's id."""
        client = self._tracking.MlflowClient(tracking_uri=self._uri)
        if self._given_run_id:
            found = client.get_run(self._given_run_id)
        else:
            known = client.get_experiment_by_name(self._experiment)
            experiment = known.experiment_id if known else client.create_experiment(self._experiment)
            found = client.create_run(experiment, run_name=self._name or run.name)
        self._client, self._run_id = client, str(found.info.run_id)
        tags = [self._entities.RunTag(f"rollmill.{key}", str(value)) for key, value in run.details.items()]
        client.log_batch(self._run_id, tags=tags)
        return f"{client.tracking_uri} run {self._run_id}"

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log all numbers, in as few calls as the server allows."""
        now = time.time_ns() // 1_000_000
        names = legal_names(metrics)
        entries = (self._entities.Metric(names[name], value, now, self._step) for name, value in metrics.items())
        while batch := list(islice(entries, BATCH)):
            self._opened().log_batch(self._run_id, metrics=batch)

    def log_rollouts(self, rollouts: Path) -> None:
        """Store the rollouts file, whole, in the run's folder `rollouts`."""
        self._opened().log_artifact(self._run_id, str(rollouts), ARTIFACT_FOLDER)

    def close(self, *, complete: bool) -> None:
        """End the run, unless it was there before."""
        if not self._given_run_id:
            self._opened().set_terminated(self._run_id, "FINISHED" if complete else "FAILED")

    def _opened(self) -> _Client:
        if self._client is None:
            raise RuntimeError("open() comes first")
        return self._client


def legal_names(names: Iterable[str]) -> dict[str, str]:
    """Map names to ones that MLflow takes, all different from each other and at most 250 characters long."""
    legal: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        wanted = "/".join(map(_legal_part, name.split("/")))[:LONGEST_NAME].rstrip("/")
        candidate, number = wanted, 2
        while candidate in taken:
            suffix = f"_{number}"
            candidate, number = wanted[: LONGEST_NAME - len(suffix)] + suffix, number + 1
        taken.add(candidate)
        legal[name] = candidate
    return legal


def _legal_part(part: str) -> str:
    for character, words in _READABLE.items():
        part = part.replace(character, words)
    part = _ILLEGAL.sub("_", part)
    visible = part.lstrip(".")  # names must not look like hidden files or other folders
    return "_" * (len(part) - len(visible)) + visible or "_"
