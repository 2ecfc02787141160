from collections.abc import Callable
from pathlib import Path

import msgspec

from rollmill.artifacts.reader import parse_line
from rollmill.contracts.rows import ROLLOUT_INDEX, TASK_INDEX, Row
from rollmill.errors import InputError


class _Keys(msgspec.Struct):
    """All that is decoded of a line to know whose it is."""

    task: int = msgspec.field(name=TASK_INDEX, default=-1)
    rollout: int = msgspec.field(name=ROLLOUT_INDEX, default=-1)


def find_rollouts(path: Path) -> Callable[[list[str]], dict[str, Row]]:
    """Return what finds rollouts in a file by their ids (`"t:r"`), in one pass that keeps only those.

    Lines that are no rollouts, such as a torn last one, are passed over. The function that is returned raises an
    `InputError` when the file cannot be read.
    """

    def find(ids: list[str]) -> dict[str, Row]:
        wanted, found = set(ids), dict[str, Row]()
        decoder = msgspec.json.Decoder(_Keys)
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if len(found) == len(wanted):
                        break
                    if (rollout := _id(decoder, line)) in wanted:
                        found[rollout] = parse_line(path, number, line)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
        return found

    return find


def _id(decoder: "msgspec.json.Decoder[_Keys]", line: bytes) -> str:
    try:
        keys = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return f"{keys.task}:{keys.rollout}"
