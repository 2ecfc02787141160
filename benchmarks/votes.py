"""How long do majority votes take?

Run:  python benchmarks/votes.py [--json out.json]

Answers are drawn by rank, the n-th most frequent one 1/n times as often as the first. CPU of this process, with
grouping the answers, for each k of a profile: 1, 2, 4, ... up to 64.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from pandas import DataFrame

from report import machine, table, write_results
from rollmill.metrics.estimators import Ints
from rollmill.metrics.summary import default_ks
from rollmill.metrics.task_scores import TaskScores
from rollmill.metrics.votes import Votes

CASES = ((20_000, 8, 6), (200_000, 8, 6), (600, 32, 10), (10_000, 64, 12), (10_000, 64, 5000), (1000, 256, 40))
"""Tasks, rollouts of each, different answers."""


def cast(tasks: int, repeats: int, kinds: int) -> tuple[TaskScores, Ints]:
    """Return scores and answers of as many rollouts."""
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, kinds + 1)
    answers = rng.choice(kinds, size=(tasks, repeats), p=weights / weights.sum())
    right = answers == rng.integers(0, kinds, size=(tasks, 1))
    rows = {"_ng_task_index": np.repeat(np.arange(tasks), repeats), "reward": right.ravel().astype(float)}
    scores = TaskScores(DataFrame(rows), "reward")
    return scores, answers.ravel()[scores.frame.index]


def seconds(tasks: int, repeats: int, kinds: int) -> float:
    """Return the CPU of all votes."""
    scores, answers = cast(tasks, repeats, kinds)
    began = time.process_time()
    votes = Votes(scores, answers)
    for k in default_ks(repeats):
        votes.majority_at(k)
    return time.process_time() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {f"{tasks:,} x {n}, {kinds:,} answers": seconds(tasks, n, kinds) for tasks, n, kinds in CASES}
    print(machine())
    print(table(["majority@k, every k", "CPU"], [[name, f"{cpu:.2f} s"] for name, cpu in found.items()]))
    write_results(arguments.json, found)


if __name__ == "__main__":
    main()
