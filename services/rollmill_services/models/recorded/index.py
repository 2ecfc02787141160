from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from rollmill.artifacts.reader import iter_lines, parse_line
from rollmill.contracts.json import JsonObject, canonical
from rollmill.contracts.rows import content_text
from rollmill.errors import ConfigError, InputError, RecordingNotFoundError
from rollmill.openai import normalize_input
from rollmill_services.models.recorded.recording import Recording, Step, model_steps, recording_of

_SHOWN_CHARACTERS = 120


class RecordingIndex:
    """Recordings by their task's input.

    Args:
        loop: start again with the first recording of an input when all of them were served.
    """

    def __init__(self, *, loop: bool = True) -> None:
        self._by_input: dict[bytes, list[Recording]] = {}
        self._turns: dict[bytes, int] = {}
        self._loop = loop
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, recording: Recording) -> None:
        """Take in a recording; those of one input are served in this order."""
        self._by_input.setdefault(_digests(recording.input)[-1], []).append(recording)
        self._size += 1

    def next_step(self, items: list[JsonObject]) -> tuple[Recording, int]:
        """Find the recording to go on with, and the number of its step that comes next.

        The longest beginning of the request that is a recorded input counts as the task. A request that is nothing
        but a task takes that task's next recording in turn; else the served items tell which recording it was.

        Args:
            items: the request's input items as they came.

        Raises:
            InputError: the items are malformed.
            RecordingNotFoundError: no recording has this input, or none goes on from here.
        """
        normalized = normalize_input(items)
        begun = False
        for length, digest in reversed(list(enumerate(_digests(normalized)))):
            if digest not in self._by_input:
                continue
            begun = True
            if length == len(items):
                return self._in_turn(digest), 0
            served = model_steps(normalized[length:])
            if recording := _begun_recording(self._by_input[digest], served, items[length:]):
                return recording, len(served)
        raise RecordingNotFoundError(self._complaint(normalized, begun=begun), recordings=self._size)

    def _in_turn(self, digest: bytes) -> Recording:
        recordings = self._by_input[digest]
        turn = self._turns.get(digest, 0)
        if turn >= len(recordings) and not self._loop:
            detail = f"all {len(recordings)} recordings of this input were served, and `loop` is off"
            raise RecordingNotFoundError(detail, recordings=self._size)
        self._turns[digest] = turn + 1
        return recordings[turn % len(recordings)]

    def _complaint(self, items: list[JsonObject], *, begun: bool) -> str:
        known = f"{self._size} recordings of {len(self._by_input)} inputs are loaded"
        users = [content_text(item.get("content")) for item in items if item.get("role") == "user"]
        shown = f"the last user message begins: {users[-1][:_SHOWN_CHARACTERS]!r}" if users else "no user message"
        if begun:
            return f"the input is recorded, but no recording goes on after the items that follow it; {known}; {shown}"
        return f"no recording has this input; {known}; {shown}"


def load_recordings(paths: list[str], *, loop: bool = True) -> RecordingIndex:
    """Read rollouts files into an index.

    Raises:
        ConfigError: a file cannot be read, or a line is not a rollout with input and output; names file and line.
    """
    index = RecordingIndex(loop=loop)
    for path in map(Path, paths):
        for recording in _recordings(path):
            index.add(recording)
    return index


def _recordings(path: Path) -> Iterator[Recording]:
    try:
        for number, line in iter_lines(path):
            row = parse_line(path, number, line)
            try:
                recording = recording_of(row)
            except (ValueError, InputError) as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
            yield recording
    except ConfigError:
        raise
    except InputError as error:
        raise ConfigError(error.detail) from None


def _digests(items: list[JsonObject]) -> list[bytes]:
    """Return the digest of each beginning of the items, from none of them to all."""
    digests = [b""]
    for item in items:
        digests.append(blake2b(digests[-1] + canonical(item), digest_size=16).digest())
    return digests


def _begun_recording(recordings: list[Recording], served: list[Step], raw: list[JsonObject]) -> Recording | None:
    going_on = [recording for recording in recordings if recording.follows(served)]
    return max(going_on, key=lambda recording: recording.likeness(raw), default=None)
