import json
import socket
from pathlib import Path

import pytest

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest
from rollmill.contracts.json import JsonObject, JsonValue


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no library connect to anything but this machine."""
    connect = socket.socket.connect

    def local_only(own: socket.socket, address: JsonValue) -> None:
        if own.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test connects to {address}")
        connect(own, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)


def rollout(task: int, index: int, reward: float) -> JsonObject:
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"name": "solver"},
        "responses_create_params": {"input": [{"role": "user", "content": f"question {task}"}]},
        "response": {
            "output": [{"type": "message", "role": "assistant", "content": f"answer {task}:{index} | done"}],
            "usage": {"output_tokens": 10 * task + index},
        },
        "reward": reward,
    }


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """A finished run: two tasks with two rollouts each, and the metrics of an environment of its own."""
    made = RunFiles.at(tmp_path / "x.jsonl")
    rows = [rollout(1, 1, 1.0), rollout(0, 1, 0.0), rollout(0, 0, 1.0), rollout(1, 0, 1.0)]
    made.rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    entry = {
        "agent_ref": {"name": "solver"},
        "agent_metrics": {"mean/reward": 0.75, "std/reward": 0.5, "by_kind": {"easy": {"share": 0.25}}},
        "key_metrics": {"mean/reward": 0.75},
        "group_level_metrics": [{"_ng_task_index": 0, "mean/reward": 0.5}],
    }
    made.aggregate_metrics.write_text(json.dumps([entry]))
    Manifest(
        run_id="first-run",
        state="finished",
        input_path="/somewhere/private/tasks.jsonl",
        digests=Digests(input="ab" * 32, overrides="cd" * 32),
        counts=Counts(expected=4, completed=4),
    ).write(made.manifest)
    return made
