from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from rollmill.export.exporter import COLUMNS, ExportedRun

if TYPE_CHECKING:
    from wandb import Settings

LOGIN_SECONDS: Final = 30
INIT_SECONDS: Final = 60
UPLOAD_SECONDS: Final = 300
"""What is not uploaded by then stays on disk, for `wandb sync`."""


class WandbExporter:
    """Writes runs to Weights & Biases, or offline to a folder that `wandb sync` uploads.

    Args:
        project: name of the project.
        mode: `online`, `offline`, `shared` or `disabled`.
        directory: W&B makes its folder `wandb` in it.
    """

    def __init__(self, project: str, *, mode: str, directory: Path) -> None:
        self._project = project
        self._mode = mode
        self._directory = directory

    def export(self, run: ExportedRun) -> str:
        """Write a run. Its name is also its id, so that exporting it again goes on with the same run."""
        import wandb

        self._directory.mkdir(parents=True, exist_ok=True)
        earlier = len(list(self._directory.glob(f"wandb/offline-run-????????_??????-{run.name}")))
        tracked = wandb.init(
            project=self._project,
            id=run.name,
            name=run.name,
            resume="allow",
            reinit="create_new",  # a run that the caller has open stays its own
            dir=str(self._directory),
            mode=cast(Literal["online", "offline", "shared", "disabled"], self._mode),
            settings=_settings(),
        )
        with tracked:
            config = {**run.params, "state": run.state}
            tracked.config.update(config, allow_val_change=True)  # type: ignore[no-untyped-call]
            table = wandb.Table(columns=list(COLUMNS), data=[list(line) for line in run.rollouts])
            tracked.log({**run.metrics, **({"rollouts": table} if run.rollouts else {})}, step=run.step)
            # W&B leaves out a step that it already has.
            tracked.summary.update(run.metrics)
            if not tracked.offline:
                return str(tracked.url or "nowhere: W&B is disabled")
            folder = tracked.settings.sync_dir
        again = "; earlier offline exports of it lie beside it: of each step, sync only the last" if earlier else ""
        return f"{folder} (offline; upload it with: wandb sync {folder}){again}"


def _settings() -> "Settings":
    """Bound every wait, and tell W&B nothing about this machine: the run may have been collected on another."""
    from wandb import Settings

    return Settings(
        silent=True,
        console="off",
        disable_git=True,
        disable_code=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        login_timeout=LOGIN_SECONDS,
        init_timeout=INIT_SECONDS,
        finish_timeout=UPLOAD_SECONDS,
        finish_timeout_raises=True,
    )
