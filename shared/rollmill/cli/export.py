from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rollmill.artifacts.files import RunFiles
from rollmill.cli.console import emit, guarded, tell

if TYPE_CHECKING:
    from rollmill.export import Exporter

Rollouts = Annotated[Path, typer.Option(help="The run's rollouts, x.jsonl; its metrics lie beside them.")]
Name = Annotated[str | None, typer.Option(help="Name of the run there; its run id when not given.")]
Step = Annotated[int, typer.Option(min=0, help="Step of everything, such as that of the training.")]
MetricsOnly = Annotated[bool, typer.Option("--metrics-only", help="Leave the rollouts out.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 1 when the tracker fails, not only warn.")]


def build_export() -> typer.Typer:
    """Make the commands of `rollmill export`, one for each tracker."""
    group = typer.Typer(no_args_is_help=True, help="Send a run's metrics and rollouts to an experiment tracker.")
    for name, command in (("wandb", wandb), ("mlflow", mlflow), ("tensorboard", tensorboard)):
        group.command(name)(guarded(command))
    return group


def wandb(  # noqa: PLR0913 (one parameter for each option of the command)
    rollouts: Rollouts,
    project: Annotated[str, typer.Option(help="Project of the run.")] = "rollmill",
    entity: Annotated[str | None, typer.Option(help="User or team; the library's default when not given.")] = None,
    name: Name = None,
    run_id: Annotated[str | None, typer.Option(help="Go on with this run.")] = None,
    step: Step = 0,
    mode: Annotated[
        Literal["online", "offline"] | None,
        typer.Option(help="offline writes a folder for `wandb sync`; else WANDB_MODE says."),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--dir", help="Where the library writes its files.")] = None,
    metrics_only: MetricsOnly = False,
    strict: Strict = False,
) -> None:
    """Export a run to Weights & Biases, the rollouts as a table."""
    from rollmill.export import WandbExporter

    exporter = WandbExporter(project, entity=entity, name=name, run_id=run_id, step=step, mode=mode, folder=folder)
    _export(rollouts, exporter, metrics_only=metrics_only, strict=strict)


def mlflow(
    rollouts: Rollouts,
    tracking_uri: Annotated[
        str | None, typer.Option(help="Server or store, such as sqlite:///mlflow.db; else MLFLOW_TRACKING_URI.")
    ] = None,
    experiment: Annotated[str, typer.Option(help="Made when it is not there.")] = "rollmill",
    name: Name = None,
    run_id: Annotated[str | None, typer.Option(help="Go on with this run.")] = None,
    step: Step = 0,
    metrics_only: MetricsOnly = False,
    strict: Strict = False,
) -> None:
    """Export a run to MLflow, the rollouts file as an artifact."""
    from rollmill.export import MlflowExporter

    exporter = MlflowExporter(tracking_uri, experiment=experiment, name=name, run_id=run_id, step=step)
    _export(rollouts, exporter, metrics_only=metrics_only, strict=strict)


def tensorboard(
    rollouts: Rollouts,
    log_dir: Annotated[str, typer.Option(help="Folder that TensorBoard is pointed at.")] = "runs",
    name: Name = None,
    step: Step = 0,
    metrics_only: MetricsOnly = False,
    strict: Strict = False,
) -> None:
    """Export a run to an event file for TensorBoard, up to 100 rollouts as text."""
    from rollmill.export import TensorBoardExporter

    exporter = TensorBoardExporter(log_dir, name=name, step=step)
    _export(rollouts, exporter, metrics_only=metrics_only, strict=strict)


def _export(rollouts: Path, exporter: "Exporter", *, metrics_only: bool, strict: bool) -> None:
    from rollmill.export import export_run

    report = export_run(RunFiles.at(rollouts), exporter, rollouts=not metrics_only)
    if report.location:
        emit(report.location)
        tell(f"{exporter.title}: {report.metrics} metrics{' and the rollouts' * report.rollouts}")
    if report.warnings and strict:
        raise typer.Exit(1)
