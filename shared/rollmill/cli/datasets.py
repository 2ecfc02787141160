import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from rollmill.artifacts.reader import read_jsonl
from rollmill.config.specs import DatasetSpec
from rollmill.config.topology import Topology
from rollmill.contracts import rows
from rollmill.contracts.json import dumps
from rollmill.contracts.rows import agent_name
from rollmill.contracts.runs import RunOptions
from rollmill.errors import InputError


@contextmanager
def dataset_input(
    topology: Topology | None, given: Path | None, split: str | None, options: RunOptions
) -> Iterator[tuple[Path, RunOptions]]:
    """Yield the task file to run, and the options with what the topology's datasets add to them.

    Raises:
        InputError: there is nothing to run, or datasets contradict each other.
    """
    if given is not None:
        yield given, options
        return
    datasets = [d for d in topology.datasets if split in (None, d.split)] if topology else []
    if not datasets:
        what = f"no dataset of split {split!r} in the topology" if split else "no tasks"
        raise InputError(f"{what}: name a task file with --input")
    adjusted = options.model_copy(update=_repeats(datasets, options))
    if len(datasets) == 1 and datasets[0].limit is None:
        agent = options.agent or datasets[0].agent
        yield Path(datasets[0].path), adjusted.model_copy(update={"agent": agent})
        return
    with tempfile.TemporaryDirectory(prefix="rollmill-") as folder:
        joined = Path(folder) / "tasks.jsonl"
        _join(datasets, joined)
        yield joined, adjusted


def _repeats(datasets: list[DatasetSpec], options: RunOptions) -> dict[str, int | dict[str, int] | None]:
    """Repeats of each dataset's agent, unless the command line says otherwise."""
    if options.num_repeats is not None:
        return {}
    if len(datasets) == 1:
        return {"num_repeats": datasets[0].num_repeats}
    merged: dict[str, int] = {}
    for dataset in datasets:
        count = dataset.num_repeats or 1
        own = count if isinstance(count, dict) else {dataset.agent or "_default": count}
        for agent, repeats in own.items():
            if merged.setdefault(agent, repeats) != repeats:
                raise InputError(f"datasets give {agent} different num_repeats; settle it with --num-repeats")
    return {"num_repeats": {"_default": 1, **merged}}


def _join(datasets: list[DatasetSpec], path: Path) -> None:
    with path.open("wb") as file:
        for dataset in datasets:
            for row in islice(read_jsonl(dataset.path), dataset.limit):
                if agent_name(row) is None and dataset.agent:
                    row[rows.AGENT_REF] = {"name": dataset.agent}
                file.write(dumps(row) + b"\n")
