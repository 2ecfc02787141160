import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rollmill.artifacts.reader import read_jsonl
from rollmill.collection.expansion import DEFAULT
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
    if len(datasets) == 1 and datasets[0].limit is None:
        update = {
            "agent": options.agent or datasets[0].agent,
            "num_repeats": options.num_repeats or datasets[0].num_repeats,
        }
        yield datasets[0].path, options.model_copy(update=update)
        return
    with tempfile.TemporaryDirectory(prefix="rollmill-") as folder:
        joined = Path(folder) / "tasks.jsonl"
        with joined.open("wb") as file:
            agents = [_append(dataset, options.agent or dataset.agent, file) for dataset in datasets]
        repeats = options.num_repeats or _repeats(datasets, agents)
        yield joined, options.model_copy(update={"num_repeats": repeats})


def _append(dataset: DatasetSpec, agent: str | None, file: BinaryIO) -> set[str]:
    """Write a dataset's rows and return the agents that run them."""
    used = set()
    for row in islice(read_jsonl(dataset.path), dataset.limit):
        if agent and agent_name(row) is None:
            row[rows.AGENT_REF] = {"name": agent}
        used.add(agent_name(row) or "")
        file.write(dumps(row) + b"\n")
    return used - {""}


def _repeats(datasets: list[DatasetSpec], agents: list[set[str]]) -> dict[str, int]:
    """Merge what the datasets say of the agents that run them; an agent that a mapping leaves out is left out."""
    merged: dict[str, int] = {}
    for dataset, used in zip(datasets, agents, strict=True):
        given = dataset.num_repeats or 1
        listed = given if isinstance(given, dict) else {DEFAULT: given}
        for agent in sorted(used):
            count = listed.get(agent, listed.get(DEFAULT))
            if count is not None and merged.setdefault(agent, count) != count:
                raise InputError(f"datasets give {agent} different num_repeats; settle it with --num-repeats")
    return merged
