"""The folder of one run of the service: its request and input, beside the files that every run has."""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from os.path import isfile
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.run_store import RunStore
from rollmill.artifacts.writer import write_atomically
from rollmill.collection.collector import CollectionPlan
from rollmill.collection.prompts import parse_prompt
from rollmill.contracts.json import canonical, dumps, loads
from rollmill.contracts.runs import RunBudget, RunOptions, RunRequest, RunStatus
from rollmill.errors import ConflictError, InputError, RunNotFoundError

CHANGEABLE = {"concurrency", "timeout_seconds", *RunBudget.model_fields}
"""Fields that a request to go on with a run may change."""
_NOT_CONTENT = {"id", "name", "resume", "rows", *CHANGEABLE}
"""Fields that may differ between two requests for the same run; rows count by their own digest."""


class RunFolder:
    """One run's folder.

    Args:
        store: where runs are kept.
        run_id: checked by whoever made the request model.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self.run_id = run_id
        self.path = store.data_dir / run_id
        self.files = RunFiles.at(self.path / "rollouts.jsonl")

    @property
    def _request(self) -> Path:
        return self.path / "request.json"

    @property
    def _input(self) -> Path:
        return self.path / "input.jsonl"

    def exists(self) -> bool:
        """Say whether a run of this id was ever accepted."""
        return self._request.is_file()

    def write(self, request: RunRequest, uploaded: bytes | None) -> None:
        """Keep the request and its tasks.

        Raises:
            InputError: it has no tasks, tasks from more than one source, or names a file that is not there.
        """
        given = [source for source in (request.input, request.rows, uploaded) if source is not None]
        if len(given) != 1:
            raise InputError("give the tasks as exactly one of 'input', 'rows' or an uploaded file")
        if request.input is not None:
            if not isfile(self._store.resolve(request.input)):  # of any path, however long
                raise InputError(f"there is no file {request.input[:200]!r} in the data directory")
        else:
            rows = b"".join(dumps(row) + b"\n" for row in request.rows or ())
            write_atomically(self._input, uploaded if uploaded is not None else rows)
        self._keep(request, _digest(request, uploaded))

    def change(self, fields: Mapping[str, object], *, paused: bool) -> RunRequest:
        """Keep how the run is to go on, so that a restart of the service knows it too.

        Args:
            fields: those of its request that are new, of `CHANGEABLE`.
            paused: whether it is to start nothing until it is resumed.
        """
        changed = self.request().model_copy(update=dict(fields))
        self._keep(changed, loads(self._request.read_bytes())["digest"], paused=paused)
        return changed

    @property
    def paused(self) -> bool:
        """Whether the run was paused, and not resumed since."""
        return bool(loads(self._request.read_bytes()).get("paused"))

    def _keep(self, request: RunRequest, digest: str, *, paused: bool = False) -> None:
        kept = request.model_dump(mode="json", exclude={"rows", "resume"}) | {"id": self.run_id}
        write_atomically(self._request, dumps({"request": kept, "digest": digest, "paused": paused}))

    def check_same(self, request: RunRequest, uploaded: bytes | None) -> None:
        """Refuse a request under this run's id that asks for something else.

        Raises:
            ConflictError: it does.
        """
        if loads(self._request.read_bytes())["digest"] != _digest(request, uploaded):
            raise ConflictError(f"there is another run called {self.run_id!r}; choose another id")

    def request(self) -> RunRequest:
        """Return the request that the run was made by, without its rows.

        Raises:
            RunNotFoundError: the folder holds none.
        """
        try:
            return RunRequest.model_validate(loads(self._request.read_bytes())["request"])
        except FileNotFoundError:
            raise RunNotFoundError(f"no run is called {self.run_id!r}", run_id=self.run_id) from None

    def unbegun(self) -> RunStatus:
        """Return what the run looks like whose service went away after it was accepted and before it began.

        Raises:
            RunNotFoundError: the folder holds no request.
        """
        try:
            accepted = datetime.fromtimestamp(self._request.stat().st_mtime, UTC)
        except FileNotFoundError:
            raise RunNotFoundError(f"no run is called {self.run_id!r}", run_id=self.run_id) from None
        return RunStatus(
            run_id=self.run_id, state="interrupted", created_at=accepted, expected=0, completed=0, failed=0
        )

    def plan(self, request: RunRequest, topology_digest: str | None) -> CollectionPlan:
        """Return what the collector needs; a run that has files already is resumed."""
        options = RunOptions.model_validate(request.model_dump(include=set(RunOptions.model_fields)))
        return CollectionPlan(
            input=self._store.resolve(request.input) if request.input is not None else self._input,
            output=self.files.rollouts,
            options=options,
            prompt=parse_prompt(request.prompt, where="prompt") if request.prompt is not None else None,
            run_id=self.run_id,
            topology_digest=topology_digest,
            resume=True,
        )

    def discard(self) -> None:
        """Remove a run that was refused before it started, so that its id is free again."""
        for path in (self._input, self._request):
            path.unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()


def accepted_runs(store: RunStore) -> Iterator[str]:
    """Yield the ids of the runs that were ever accepted, begun or not."""
    for path in store.data_dir.glob("*/request.json"):
        yield path.parent.name


def _digest(request: RunRequest, uploaded: bytes | None) -> str:
    content = request.model_dump(mode="json", exclude=_NOT_CONTENT)
    tasks = hashlib.sha256(uploaded or b"")
    for row in request.rows or ():
        tasks.update(canonical(row) + b"\n")
    return hashlib.sha256(canonical([content, tasks.hexdigest()])).hexdigest()
