"""The rollouts that the benchmark of profiles is made of: 4 KB each, a tool call, 11 numeric fields."""

import random
from collections.abc import Iterator
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.contracts.json import dumps
from rollmill.contracts.runs import AgentProgress


def make_run(folder: Path, tasks: int, repeats: int) -> Path:
    """Write a run's rollouts, input rows and manifest; return the path of the rollouts."""
    files = RunFiles.at(folder / "x.jsonl")
    total = tasks * repeats
    with files.rollouts.open("wb") as rollouts, files.inputs.open("wb") as inputs:
        for line, row in lines(tasks, repeats):
            rollouts.write(line)
            inputs.write(row)
    begin_run(files, total)
    return files.rollouts


def begin_run(files: RunFiles, expected: int) -> None:
    """Write the manifest of a run that goes on."""
    Manifest(
        run_id="x",
        state="running",
        counts=Counts(expected=expected),
        agents={"weather_agent": AgentProgress(expected=expected)},
        digests=Digests(input="", overrides=""),
    ).write(files.manifest)


def lines(tasks: int, repeats: int, first_task: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield lines of rollouts and of their input rows."""
    rng = random.Random(first_task)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    texts = [" ".join(rng.choices(words, k=150)) for _ in range(300)]
    for task in range(first_task, first_task + tasks):
        difficulty = rng.random()
        for index in range(repeats):
            row = input_row(task, index, texts[task % len(texts)])
            yield dumps(row | outcome(rng, texts, right=rng.random() > difficulty)) + b"\n", dumps(row) + b"\n"


def input_row(task: int, index: int, question: str) -> dict[str, object]:
    """Make one materialized row."""
    tool = {"type": "function", "name": "get_weather", "strict": True, "parameters": {"type": "object"}}
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"type": "responses_api_agents", "name": "weather_agent"},
        "responses_create_params": {"input": [{"role": "user", "content": question[:600]}], "tools": [tool]},
        "expected_answer": "A",
    }


def outcome(rng: random.Random, texts: list[str], *, right: bool) -> dict[str, object]:
    """Make what a rollout adds to its row."""
    written = rng.randint(20, 4000)
    said = {"type": "output_text", "text": rng.choice(texts), "annotations": []}
    output: list[dict[str, object]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": rng.choice(texts)}]},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"temperature": 21, "unit": "C"}'},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]},
    ]
    usage = {
        "input_tokens": 700,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 10},
        "total_tokens": 700 + written,
    }
    return {
        "response": {"id": "r", "model": "m", "output": output, "incomplete_details": None, "usage": usage},
        "reward": float(right),
        "extracted_answer": "A" if right else rng.choice("BCD"),
        "accuracy": right,
        "format_ok": True,
        "library_reward": float(right),
        "num_tool_calls": 1,
        "latency_ms": rng.random() * 1000,
        "reward_components": {"answer": float(right), "format": 0.5},
        "_rollmill": {"seconds": rng.random() * 9, "started_at": 1754000000.25, "attempt": 0},
    }
