"""`rollmill export`: a run in experiment trackers."""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rollmill.artifacts.files import RunFiles
from rollmill.cli.console import emit, tell
from rollmill.export.exporters import ExportSettings, Tracker, export_run, open_exporters

if TYPE_CHECKING:
    from rollmill.export.exporter import ExportedRun, Exporter

MAX_ROLLOUTS: Final = 1000
_CREDENTIALS: Final = re.compile(r"//[^/\s]+@")


def export(  # noqa: PLR0913 (one parameter for each option of the command)
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's rollouts, x.jsonl.")],
    to: Annotated[list[Tracker], typer.Option(help="Where to; may be given several times.")],
    name: Annotated[str | None, typer.Option(help="What trackers know the run by; the run id when not given.")] = None,
    step: Annotated[int, typer.Option(min=0, help="Place on the trackers' horizontal axis, e.g. a training step.")] = 0,
    project: Annotated[
        str | None,
        typer.Option(help="Project of W&B and experiment of MLflow; else WANDB_PROJECT, MLFLOW_EXPERIMENT_NAME."),
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(help="Store or server of MLflow; else MLFLOW_TRACKING_URI, else sqlite:///mlflow.db."),
    ] = None,
    wandb_dir: Annotated[
        Path | None, typer.Option(help="Where W&B makes its folder `wandb`; else WANDB_DIR, else here.")
    ] = None,
    tensorboard_dir: Annotated[
        Path | None, typer.Option(help="TensorBoard's logdir; else ROLLMILL_TENSORBOARD_DIR, else runs.")
    ] = None,
    rollouts: Annotated[bool, typer.Option("--rollouts/--no-rollouts", help="Send a table of rollouts too.")] = True,
    max_rollouts: Annotated[int, typer.Option(min=1, help="Most rollouts of that table.")] = MAX_ROLLOUTS,
) -> None:
    """Write the metrics of a run, finished or not, to experiment trackers. Doing it again replaces what was there."""
    from rollmill.export.reading import read_run

    settings = ExportSettings.from_environment(
        os.environ,
        project=project,
        tracking_uri=tracking_uri,
        wandb_dir=wandb_dir,
        tensorboard_dir=tensorboard_dir,
    )
    exporters = open_exporters(to, settings)
    found = read_run(RunFiles.at(run), name=name, step=step, max_rollouts=max_rollouts if rollouts else 0)
    places = _deliver(found, exporters)
    for tracker, place in places.items():
        emit(f"{tracker}: {place}")
    if len(places) < len(exporters):
        raise typer.Exit(1)


def export_collected(output: Path, exporters: "Mapping[Tracker, Exporter]", *, rollouts: bool) -> None:
    """Export a run that has just been collected. Whatever goes wrong is a warning: the run itself is safe."""
    if not exporters:
        return
    from rollmill.export.reading import read_run  # pandas and pyarrow, which a run without exporters does without

    try:
        found = read_run(RunFiles.at(output), max_rollouts=MAX_ROLLOUTS if rollouts else 0)
    except Exception as error:
        tell(f"warning: not exported: {_told(error)}")
        return
    for tracker, place in _deliver(found, exporters).items():
        tell(f"{tracker}: {place}")


def _deliver(run: "ExportedRun", exporters: "Mapping[Tracker, Exporter]") -> dict[Tracker, str]:
    """Export a run, warn about what fails, and return where it is in the other trackers."""
    # Results of a private model are no business of a third party, unless the user says otherwise.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    for note in run.notes:
        tell(f"note: {note}")
    places: dict[Tracker, str] = {}
    with redirect_stdout(sys.stderr):  # what trackers' libraries print is not the command's result
        for tracker, outcome in export_run(run, exporters):
            if isinstance(outcome, Exception):
                tell(f"warning: not exported to {tracker}: {_told(outcome)}; try again with `rollmill export`")
            else:
                places[tracker] = outcome
    return places


def _told(error: Exception) -> str:
    """Return the first line of an error, without the password of an address: trackers' libraries tell all they know."""
    lines = str(error).strip().splitlines()
    return _CREDENTIALS.sub("//***@", lines[0]) if lines else type(error).__name__
