from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from rollmill.export.exporter import RunDetails, load_library
from rollmill.export.rollouts import sample_rollouts

Mode: TypeAlias = Literal["online", "offline"]

MOST_ROLLOUTS: Final = 10_000
"""Rows of the table; the library cuts longer ones."""

_ONLY_WHAT_IS_LOGGED: Final = {
    "console": "off",
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class _Settings(Protocol):
    sync_dir: str


class _Run(Protocol):
    """What is used of `wandb.Run`."""

    offline: bool
    url: str | None
    settings: _Settings

    def log(self, data: Mapping[str, object], *, step: int) -> None: ...
    def finish(self, *, exit_code: int) -> None: ...


class WandbExporter:
    """Exports to Weights & Biases: a run with the metrics, and the rollouts as a table.

    Nothing else is recorded: no console, code, git state or machine. An active run of the same process is left alone.

    Args:
        project: where the run goes.
        entity: user or team; the library's default when None.
        name: shown for the run; its run id in Rollmill when None.
        run_id: go on with this run instead of making one.
        step: of all that is logged; rises along a training.
        mode: `offline` writes a folder for `wandb sync`; None leaves it to `WANDB_MODE`.
        folder: for the library's files; the current one when None.

    Raises:
        InputError: the library is not installed.
    """

    title = "Weights & Biases"

    def __init__(
        self,
        project: str = "rollmill",
        *,
        entity: str | None = None,
        name: str | None = None,
        run_id: str | None = None,
        step: int = 0,
        mode: Mode | None = None,
        folder: Path | None = None,
    ) -> None:
        self._wandb = load_library("wandb", extra="wandb")
        self._project = project
        self._entity = entity
        self._name = name
        self._run_id = run_id
        self._step = step
        self._mode = mode
        self._folder = folder
        self._run: _Run | None = None

    def open(self, run: RunDetails) -> str:
        """Start the run; returns its page, or its folder when it is offline."""
        started: _Run = self._wandb.init(
            project=self._project,
            entity=self._entity,
            name=self._name or run.name,
            id=self._run_id,
            resume="allow" if self._run_id else None,
            mode=self._mode,
            dir=str(self._folder) if self._folder else None,
            config=run.details,
            reinit="create_new",
            settings=self._wandb.Settings(**_ONLY_WHAT_IS_LOGGED),
        )
        self._run = started
        return str(started.settings.sync_dir) if started.offline else started.url or self._project

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Log all numbers as one step."""
        self._started().log(metrics, step=self._step)

    def log_rollouts(self, rollouts: Path) -> None:
        """Log a table of the rollouts, called `rollouts`; a sample of them when there are more than 10,000."""
        sample = sample_rollouts(rollouts, MOST_ROLLOUTS)
        table = self._wandb.Table(columns=sample.columns, data=sample.rows)
        self._started().log({"rollouts": table}, step=self._step)

    def close(self, *, complete: bool) -> None:
        """Finish the run, as failed when it is not complete."""
        self._started().finish(exit_code=0 if complete else 1)

    def _started(self) -> _Run:
        if self._run is None:
            raise RuntimeError("open() comes first")
        return self._run
