"""Make task files: `python -m rollmill_services.resources.reasoning_gym.make_tasks FAMILY --output tasks.jsonl`."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.rows import Row

_FORM = "Write the final answer between <answer> and </answer>, and nothing else there."


def make_tasks(family: str, *, size: int, seed: int, agent: str | None = None, **config: JsonValue) -> Iterator[Row]:
    """Yield tasks of one family.

    Args:
        family: a name of reasoning-gym, such as `knights_knaves`.
        size: how many tasks, >= 1.
        seed: the same seed gives the same tasks.
        agent: name for `agent_ref`; rows without one go to the agent of their dataset.
        config: the family's own settings, such as its difficulty.

    Raises:
        ValueError: there is no such family.
        AssertionError, TypeError: a setting is out of range, or unknown; from reasoning-gym.
    """
    import reasoning_gym

    for entry in reasoning_gym.create_dataset(family, size=size, seed=seed, **config):
        question = f"{entry['question']}\n\n{_FORM}"
        row: JsonObject = {"responses_create_params": {"input": [{"role": "user", "content": question}]}}
        if agent:
            row["agent_ref"] = {"name": agent}
        yield {**row, "question": entry["question"], "answer": entry["answer"], "metadata": entry["metadata"]}


def main(arguments: list[str]) -> None:
    """Write a task file."""
    parser = argparse.ArgumentParser(prog="make_tasks", description="Make tasks of one family of reasoning-gym.")
    parser.add_argument("family")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--agent")
    parser.add_argument("--config", type=loads, default={}, help='JSON object, such as {"n_people": 3}')
    given = parser.parse_args(arguments)
    try:
        rows = list(make_tasks(given.family, size=given.size, seed=given.seed, agent=given.agent, **given.config))
    except (ValueError, AssertionError, TypeError) as error:
        parser.error(f"{given.family}: {error}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
