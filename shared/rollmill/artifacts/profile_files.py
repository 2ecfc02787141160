from typing import TYPE_CHECKING

import orjson

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.writer import replacing, write_atomically
from rollmill.contracts.json import dumps

if TYPE_CHECKING:
    from rollmill.metrics import RewardProfile


def write_profile(files: RunFiles, profile: "RewardProfile") -> None:
    """Write `x_reward_profiling.jsonl` and `x_agent_metrics.json`; a reader never sees half of either.

    Raises:
        StorageError: one cannot be written; what it was before is still there.
    """
    with replacing(files.reward_profiling) as file:
        for task in profile.iter_tasks():  # one at a time: a large profile is never held whole
            file.write(dumps(task) + b"\n")
    agents = orjson.dumps(profile.agents, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_atomically(files.agent_metrics, agents)
