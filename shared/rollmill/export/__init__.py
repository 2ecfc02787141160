"""Sends a run's metrics and rollouts to an experiment tracker. The trackers' own libraries are optional extras."""

from typing import TYPE_CHECKING

from rollmill._lazy import lazy_exports

if TYPE_CHECKING:
    from rollmill.export.exporter import Exporter, RunDetails
    from rollmill.export.mlflow import MlflowExporter
    from rollmill.export.run import ExportReport, export_run
    from rollmill.export.tensorboard import TensorBoardExporter
    from rollmill.export.wandb import WandbExporter

__getattr__ = lazy_exports(
    __name__,
    {
        "ExportReport": "rollmill.export.run",
        "Exporter": "rollmill.export.exporter",
        "MlflowExporter": "rollmill.export.mlflow",
        "RunDetails": "rollmill.export.exporter",
        "TensorBoardExporter": "rollmill.export.tensorboard",
        "WandbExporter": "rollmill.export.wandb",
        "export_run": "rollmill.export.run",
    },
)

__all__ = [
    "ExportReport",
    "Exporter",
    "MlflowExporter",
    "RunDetails",
    "TensorBoardExporter",
    "WandbExporter",
    "export_run",
]
