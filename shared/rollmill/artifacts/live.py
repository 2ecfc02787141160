"""A run that is followed while it goes on. It imports numpy: import this module inside functions only."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rollmill.artifacts.column_arrays import Columns, columns_of, joined
from rollmill.artifacts.column_file import ColumnFile, fingerprint
from rollmill.artifacts.columns import RunColumns, answer_fields, open_column_file, read_columns
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.keys import KeySet
from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.rollout_rows import AnswerFields
from rollmill.artifacts.scan import Kind
from rollmill.artifacts.scanning import scan
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import RowKey
from rollmill.errors import InputError
from rollmill.metrics.running import RunningProfile

_ATTEMPTS = 3
_KEYS_SHOWN = 10


class FollowedFile:
    """A JSONL file that grows: the columns that were read are kept, and only what is new is read.

    Args:
        path: the file; it need not be there yet.
        kind: rollouts or input rows.
        stored: opens what is stored of its columns, if anything is.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind = "rollouts",
        stored: Callable[[AnswerFields], ColumnFile | None] = lambda _: None,
    ) -> None:
        self._path = path
        self._kind = kind
        self._stored = stored
        self._answers = AnswerFields()
        self._parts: list[Columns] = []
        self._end = 0
        self._fingerprint = ""

    def refresh(self, answers: AnswerFields | None = None) -> tuple[list[Columns], bool]:
        """Read what is new.

        Args:
            answers: where the answers of rollouts are.

        Returns:
            The new rows, and whether they take the place of all that were there: the file shrank or was replaced, or
            answers are elsewhere now.

        Raises:
            InputError: a line is no row; names file and line. What was read before is still there.
        """
        answers = answers or AnswerFields()
        for _ in range(_ATTEMPTS):
            goes_on = answers == self._answers and self._is_same()
            new = list(self._read(self._end if goes_on else 0, answers))
            if goes_on and not self._is_same():
                continue  # it was replaced while it was read
            self._answers = answers
            self._parts = [*(self._parts if goes_on else ()), *new]
            self._end = new[-1].end if new else self._end if goes_on else 0
            self._fingerprint = fingerprint(self._path, self._end)
            return new, not goes_on
        raise InputError(f"{self._path}: the file is replaced again and again")

    def columns(self) -> Columns:
        """Return everything that was read."""
        self._parts = [joined(replace(part, fields=dict(part.fields)) for part in self._parts)]
        return self._parts[0]

    def _is_same(self) -> bool:
        return self._end == 0 or fingerprint(self._path, self._end) == self._fingerprint

    def _read(self, start: int, answers: AnswerFields) -> Iterator[Columns]:
        stored = self._stored(answers) if start == 0 else None
        if stored is not None:
            yield stored.read()
            start = stored.end
        if self._path.exists():
            with scan(self._path, start=start, kind=self._kind, answers=answers) as chunks:
                yield from map(columns_of, chunks)


class LiveColumns:
    """The columns of a run that goes on, at the cost of what is new.

    Args:
        files: the run's files; the rollouts need not be there yet.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._file = FollowedFile(files.rollouts, stored=partial(open_column_file, files))

    def refresh(self) -> tuple[list[Columns], bool]:
        """Read the new rollouts, see `FollowedFile.refresh`."""
        return self._file.refresh(answer_fields(read_manifest(self._files.manifest)))

    def columns(self) -> RunColumns:
        """Return everything that was read, with what the run's other files say now.

        Raises:
            InputError: one of them cannot be read.
        """
        return read_columns(self._files, self._file.columns())


class LiveProfile:
    """The statistics of a run that goes on, kept up to date at the cost of what is new.

    Args:
        files: the run's files; the rollouts need not be there yet.
    """

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._columns = LiveColumns(files)
        self._start_over({})

    def refresh(self) -> int:
        """Take in what is new; return how many rollouts it took in: all of them when it had to start over.

        Raises:
            InputError: a line is no rollout; names file and line.
        """
        new, again = self._columns.refresh()
        scores = self._scores()
        if again:
            self._start_over(scores)
        elif scores != self._score_fields:  # the manifest was not there yet
            self._start_over(scores)
            new = [self._columns.columns().columns]
        for part in new:
            self._add(part)
        return sum(map(len, new))

    def summary(self) -> JsonObject:
        """Return the statistics of what was taken in: `agents`, see `RunningProfile.summary`, and how complete it is.

        Raises:
            InputError: keys are duplicate; shows the first ten.
        """
        if self._repeated:
            shown = ", ".join(map(str, self._repeated[:_KEYS_SHOWN]))
            raise InputError(f"duplicate keys in the rollouts: {shown}", count=len(self._repeated))
        manifest = read_manifest(self._files.manifest)
        expected = manifest.counts.expected if manifest is not None else None
        return {
            "state": manifest.state if manifest is not None else None,
            "rollouts": len(self._keys),
            "expected_rollouts": expected,
            "refused_rollouts": self._refused,
            "agents": self._profile.summary(),
        }

    def tasks(self) -> Iterator[JsonObject]:
        """Yield the statistics of each task, see `RunningProfile.tasks`."""
        return self._profile.tasks()

    def columns(self) -> RunColumns:
        """Return the columns of what was taken in."""
        return self._columns.columns()

    def _scores(self) -> dict[str, str]:
        manifest = read_manifest(self._files.manifest)
        scoring = manifest.scoring if manifest is not None else {}
        return {agent: entry.score_fields[0] for agent, entry in scoring.items()}

    def _start_over(self, score_fields: dict[str, str]) -> None:
        self._score_fields = score_fields
        self._profile = RunningProfile(score_fields)
        self._keys = KeySet()
        self._repeated: list[RowKey] = []
        self._refused = 0

    def _add(self, part: Columns) -> None:
        self._profile.add(part.tasks, part.agents.names, part.agents.codes, part.fields)
        keys = map(RowKey, part.tasks.tolist(), part.rollouts.tolist())
        self._repeated += [key for key in keys if not self._keys.add(key)]
        self._refused += len(part.refused)
