import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from rollmill.errors import InputError
from rollmill.export.exporter import ExportedRun, Exporter
from rollmill.export.mlflow_exporter import MlflowExporter
from rollmill.export.tensorboard_exporter import TensorboardExporter
from rollmill.export.wandb_exporter import WandbExporter


class Tracker(StrEnum):
    """Where runs can be exported to; the extra with its library is called the same."""

    WANDB = "wandb"
    MLFLOW = "mlflow"
    TENSORBOARD = "tensorboard"


_MODULES: Final[Mapping[Tracker, tuple[str, ...]]] = {
    Tracker.WANDB: ("wandb",),
    Tracker.MLFLOW: ("mlflow", "sqlalchemy", "alembic"),
    Tracker.TENSORBOARD: ("tensorboardX",),
}
_PROJECT: Final = "rollmill"


class MissingExtraError(InputError):
    """The library of a tracker is not installed."""

    slug, title = "missing-extra", "Missing extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """Where trackers keep what they get."""

    wandb_project: str = _PROJECT
    wandb_mode: str = "offline"
    """A mode of W&B: `online`, `offline`, `shared` or `disabled`."""
    wandb_dir: Path = Path()
    """W&B makes its folder `wandb` here."""
    mlflow_experiment: str = _PROJECT
    tracking_uri: str = "sqlite:///mlflow.db"
    """A store or server of MLflow."""
    tensorboard_dir: Path = Path("runs")
    """Each run gets a folder of its own in it."""

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str],
        *,
        project: str | None = None,
        tracking_uri: str | None = None,
        wandb_dir: Path | None = None,
        tensorboard_dir: Path | None = None,
    ) -> Self:
        """Take what is not given from the variables that the trackers themselves know, else from the defaults.

        W&B is online when `WANDB_MODE` says so, or when it says nothing and there is a `WANDB_API_KEY`.
        """
        known = {name: value for name, value in environment.items() if value}
        return cls(
            wandb_project=project or known.get("WANDB_PROJECT", _PROJECT),
            wandb_mode=known.get("WANDB_MODE", "online" if "WANDB_API_KEY" in known else "offline"),
            wandb_dir=wandb_dir or Path(known.get("WANDB_DIR", ".")),
            mlflow_experiment=project or known.get("MLFLOW_EXPERIMENT_NAME", _PROJECT),
            tracking_uri=tracking_uri or known.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"),
            tensorboard_dir=tensorboard_dir or Path(known.get("ROLLMILL_TENSORBOARD_DIR", "runs")),
        )


def open_exporters(trackers: Iterable[Tracker], settings: ExportSettings) -> dict[Tracker, Exporter]:
    """Make the exporters of some trackers; nothing is imported or written yet.

    Raises:
        MissingExtraError: the library of one is not installed; names the extra that has it.
    """
    wanted = list(dict.fromkeys(trackers))
    if missing := [tracker for tracker in wanted if not all(map(_is_installed, _MODULES[tracker]))]:
        raise MissingExtraError(
            f"no library for {' and '.join(missing)}; install it: pip install 'rollmill[{','.join(missing)}]'"
        )
    return {tracker: _exporter(tracker, settings) for tracker in wanted}


def export_run(run: ExportedRun, exporters: Mapping[Tracker, Exporter]) -> Iterator[tuple[Tracker, str | Exception]]:
    """Write a run to each tracker, and yield where it is now or what went wrong; one failure stops no other."""
    for tracker, exporter in exporters.items():
        try:
            yield tracker, exporter.export(run)
        except Exception as error:
            yield tracker, error


def _is_installed(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # W&B's own folder `wandb` may look like a package


def _exporter(tracker: Tracker, settings: ExportSettings) -> Exporter:
    if tracker is Tracker.WANDB:
        return WandbExporter(settings.wandb_project, mode=settings.wandb_mode, directory=settings.wandb_dir)
    if tracker is Tracker.MLFLOW:
        return MlflowExporter(settings.mlflow_experiment, tracking_uri=settings.tracking_uri)
    return TensorboardExporter(settings.tensorboard_dir)
