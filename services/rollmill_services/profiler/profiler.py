from dataclasses import dataclass

from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.run_store import RunStore
from rollmill.contracts.rows import Row
from rollmill.contracts.runs import RunState
from rollmill.errors import InputError, PayloadTooLargeError, RunNotFoundError
from rollmill.profiling import Profile, RunTables, collect_tables, read_tables, standing_in
from rollmill_services.profiler.requests import ProfileRequest


@dataclass(frozen=True, slots=True)
class Profiled:
    """A profile, and what it is of."""

    profile: Profile
    run_id: str | None = None
    state: RunState | None = None


class Profiler:
    """Profiles runs and posted rows. Every method reads and computes at once: call it in a thread.

    Args:
        store: where runs and files are found.
        max_rows: most rollouts, and most input rows, of one request.
    """

    def __init__(self, store: RunStore, *, max_rows: int) -> None:
        self._store = store
        self._max_rows = max_rows

    def of_run(self, run_id: str, *, allow_partial: bool) -> Profiled:
        """Profile a run as it stands.

        Raises:
            RunNotFoundError: there is no such run, or it was never started.
            InputError: its files are damaged, or rollouts are missing and that is not accepted.
        """
        files = self._store.files(run_id)
        manifest = read_manifest(files.manifest)
        if manifest is None:
            raise RunNotFoundError(f"the run {run_id!r} was never started", run_id=run_id)
        tables = read_tables(files.inputs, files.rollouts)
        return Profiled(Profile(tables, allow_partial=allow_partial), run_id, manifest.state)

    def of_request(self, request: ProfileRequest) -> Profiled:
        """Profile posted rows, or files inside the data directory.

        Raises:
            PayloadTooLargeError: too many rows.
            InputError: rows or files are wrong, or rollouts are missing and that is not accepted.
        """
        return Profiled(Profile(self._tables(request), allow_partial=request.allow_partial))

    def _tables(self, request: ProfileRequest) -> RunTables:
        if request.rollouts_path is not None:
            inputs = self._store.resolve(request.inputs_path) if request.inputs_path is not None else None
            return read_tables(inputs, self._store.resolve(request.rollouts_path))
        if request.rollouts is None:
            raise InputError("the request names no rollouts")
        rollouts = self._within("rollouts", request.rollouts)
        if request.inputs is None:
            return standing_in(rollouts)
        return collect_tables(self._within("inputs", request.inputs), rollouts)

    def _within(self, name: str, rows: list[Row]) -> list[Row]:
        if len(rows) > self._max_rows:
            raise PayloadTooLargeError(
                f"{name}: {len(rows)} rows, more than {self._max_rows} (setting max_rows); "
                f"put them into a file in the data directory and send {name}_path"
            )
        return rows
