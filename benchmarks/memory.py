"""The part of collect.py that asks how much memory the collector holds, and whether that grows with the rollouts."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from running import Collection

SHARES = (0.1, 0.5, 0.9)
POLL_SECONDS = 0.2
QUESTION = (
    "How many of the words of this question are longer than the number of its task, and which of them is last? " * 4
)


@dataclass
class Memory:
    """Resident memory of the collecting process."""

    tasks: int
    rollouts: int
    megabytes: dict[str, float]
    """By the share of the rollouts that was completed, in percent, and at most."""
    cpu_ms: float
    """CPU per rollout, that of the trivial agent and of the sidecar's writer included."""


def measure(folder: Path, tasks: int, repeats: int, concurrency: int) -> Memory:
    """Collect rollouts of a trivial agent in one process and watch its memory."""
    topology = _topology(folder, tasks)
    collection = Collection(topology, folder / "memory.jsonl", concurrency, repeats, ["--embedded"])
    collection.manifest().unlink(missing_ok=True)  # what an earlier run completed is not this one's progress
    rollouts = tasks * repeats
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    before = os.times()
    process = psutil.Popen(collection.command(), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    samples = list(_samples(process, collection))
    after = os.times()
    if process.returncode or collection.completed() != rollouts:
        raise SystemExit(f"{collection.completed()} of {rollouts} rollouts were completed")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Memory(tasks, rollouts, _at_shares(samples, rollouts), cpu / rollouts * 1e3)


def _at_shares(samples: list[tuple[int, float]], rollouts: int) -> dict[str, float]:
    found = {}
    for share in SHARES:
        reached = [megabytes for completed, megabytes in samples if completed >= share * rollouts]
        if reached:  # else the run was over between two looks at its manifest
            found[f"{share:.0%}"] = reached[0]
    return {**found, "at most": max(megabytes for _, megabytes in samples)}


def _samples(process: psutil.Popen, collection: Collection) -> Iterator[tuple[int, float]]:
    """Yield completed rollouts and megabytes until the process ends."""
    while process.poll() is None:
        try:
            yield collection.completed(), process.memory_info().rss / 1e6
        except psutil.Error:
            break
        time.sleep(POLL_SECONDS)  # noqa: TID251 (a benchmark measures wall time)
    process.wait()


def _topology(folder: Path, tasks: int) -> Path:
    """Write a task file of so many distinct tasks, and the topology that runs it."""
    path = folder / "memory.yaml"
    data = folder / "tasks.jsonl"
    with data.open("w") as file:
        for number in range(tasks):
            message = {"role": "user", "content": f"{number}: {QUESTION}"}
            row = {"responses_create_params": {"input": [message]}, "agent_ref": {"name": "echo"}}
            file.write(json.dumps(row) + "\n")
    lines = ["services:", "  echo: {kind: agent, use: 'echo_agent:create_app'}"]
    lines += ["datasets:", f"  - {{agent: echo, path: {data}, split: validation}}"]
    path.write_text("\n".join(lines) + "\n")
    return path
