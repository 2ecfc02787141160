import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import orjson

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.writer import StorageError, write_atomically
from rollmill.contracts.json import dumps

if TYPE_CHECKING:
    from rollmill.metrics import RewardProfile


def write_profile(files: RunFiles, profile: "RewardProfile") -> None:
    """Write `x_reward_profiling.jsonl` and `x_agent_metrics.json`; a reader never sees half of either.

    Raises:
        StorageError: one cannot be written; what it was before is still there.
    """
    with _replacing(files.reward_profiling) as file:
        for task in profile.iter_tasks():  # one at a time: a large profile is never held whole
            file.write(dumps(task) + b"\n")
    agents = orjson.dumps(profile.agents, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_atomically(files.agent_metrics, agents)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends without an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    finally:
        with suppress(OSError):  # not there any more, or its folder never was
            temporary.unlink()
