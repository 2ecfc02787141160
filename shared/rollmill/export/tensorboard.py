import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

from rollmill.export.exporter import RunDetails, load_library
from rollmill.export.rollouts import Cell, RolloutSample, sample_rollouts, shorten

MOST_ROLLOUTS: Final = 100
MOST_CHARACTERS: Final = 300


class _Writer(Protocol):
    """What is used of `tensorboardX.event_file_writer.EventsWriter`."""

    def write_event(self, event: object) -> object: ...
    def close(self) -> object: ...


class TensorBoardExporter:
    """Exports to an event file for TensorBoard: metrics as scalars, details and rollouts as text.

    TensorBoard keeps scalars in 32 bits, about seven digits.

    Args:
        log_dir: the folder that TensorBoard is pointed at; the run gets a folder in it.
        name: of that folder; the run's id in Rollmill when None.
        step: of all that is written; rises along a training.

    Raises:
        InputError: the library is not installed.
    """

    title = "TensorBoard"

    def __init__(self, log_dir: str | Path = "runs", *, name: str | None = None, step: int = 0) -> None:
        self._writers = load_library("tensorboardX.event_file_writer", extra="tensorboard")
        self._summary = load_library("tensorboardX.summary", extra="tensorboard")
        self._protos = load_library("tensorboardX.proto.event_pb2", extra="tensorboard")
        self._log_dir = str(log_dir)
        self._name = name
        self._step = step
        self._writer: _Writer | None = None

    def open(self, run: RunDetails) -> str:
        """Make the run's folder, and an event file of this export's own; returns the folder."""
        folder = f"{self._log_dir}/{self._name or run.name}"
        self._writers.directory_check(folder)
        # Not the usual SummaryWriter: it turns both `pass@1` and `pass^1` into `pass_1`, and its thread keeps errors.
        self._writer = self._writers.EventsWriter(f"{folder}/events", filename_suffix=f".{uuid4().hex[:8]}")
        if run.details:
            self._write(self._summary.text("run", _markdown(["", ""], [[k, v] for k, v in run.details.items()])))
        return folder

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write each number as a scalar."""
        value = self._summary.Summary.Value
        self._write(
            self._summary.Summary(value=[value(tag=name, simple_value=number) for name, number in metrics.items()])
        )

    def log_rollouts(self, rollouts: Path) -> None:
        """Write a table of the rollouts as text; a sample of them when there are more than 100."""
        self._write(self._summary.text("rollouts", _described(sample_rollouts(rollouts, MOST_ROLLOUTS))))

    def close(self, *, complete: bool) -> None:
        """Flush and close the file."""
        self._opened().close()

    def _write(self, summary: object) -> None:
        self._opened().write_event(self._protos.Event(wall_time=time.time(), step=self._step, summary=summary))

    def _opened(self) -> _Writer:
        if self._writer is None:
            raise RuntimeError("open() comes first")
        return self._writer


def _described(sample: RolloutSample) -> str:
    told = f"{len(sample.rows)} of {sample.total} rollouts"
    return f"{told}\n\n{_markdown(sample.columns, sample.rows)}"


def _markdown(columns: list[str], rows: list[list[Cell]]) -> str:
    lines: list[Sequence[Cell]] = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: Cell) -> str:
    if value is None:
        return ""
    return " ".join(shorten(str(value), MOST_CHARACTERS).split()).replace("|", "\\|")
