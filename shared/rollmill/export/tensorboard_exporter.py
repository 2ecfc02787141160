from collections.abc import Iterable, Sequence
from pathlib import Path

from rollmill.contracts.json import JsonValue
from rollmill.export.exporter import COLUMNS, ExportedRun
from rollmill.export.names import portable_name


class TensorboardExporter:
    """Writes each run as event files in a folder of its own, one file for each step.

    Args:
        directory: what `tensorboard --logdir` is given.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def export(self, run: ExportedRun) -> str:
        """Write the event file of a run's step in place of an earlier one."""
        from tensorboardX import SummaryWriter

        folder = self._directory / run.name
        suffix = f".rollmill.step-{run.step}"
        for earlier in folder.glob(f"events.out.tfevents.*{suffix}"):
            earlier.unlink()
        with SummaryWriter(str(folder), filename_suffix=suffix) as writer:
            for name, value in run.metrics.items():
                writer.add_scalar(portable_name(name), value, run.step)
            writer.add_text("run", _as_code(f"{name}: {value}" for name, value in run.params.items()), run.step)
            if run.rollouts:
                writer.add_text("rollouts", _as_code(map(_describe, run.rollouts)), run.step)
        return f"{folder} (look at it with: tensorboard --logdir {self._directory})"


def _describe(rollout: Sequence[JsonValue]) -> str:
    *short, asked, answered = zip(COLUMNS, rollout, strict=True)
    head = ", ".join(f"{name} {value}" for name, value in short if value is not None)
    return f"--- {head}\n> {asked[1]}\n< {answered[1]}"


def _as_code(texts: Iterable[str]) -> str:
    """Make a Markdown code block: what models wrote must load no image and make no link."""
    return "\n".join(f"    {line}" for text in texts for line in text.splitlines())
