from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.run_store import RunStore
from rollmill.comparison import compare_files
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.rows import Row, row_key
from rollmill.errors import InputError, PayloadTooLargeError, RunNotFoundError
from rollmill.profiling import Profile, RunTables, collect_tables, read_tables, standing_in
from rollmill_services.profiler.requests import ProfileRequest
from rollmill_services.profiler.views import Profiled

if TYPE_CHECKING:
    from rollmill.artifacts.columns import RunColumns
    from rollmill.live import LiveRun

_BATCH = 2000


class Profiler:
    """Profiles runs and posted rows. Every method reads and computes at once: call it in a thread.

    Args:
        store: where runs and files are found.
        max_rows: most rollouts, and most input rows, of one request.
        max_followed: most runs whose columns are kept between requests.
    """

    def __init__(self, store: RunStore, *, max_rows: int, max_followed: int = 4) -> None:
        self._store = store
        self._max_rows = max_rows
        self._max_followed = max_followed
        self._followed: dict[RunFiles, LiveRun] = {}
        self._lock = Lock()

    def of_run(self, run_id: str, *, allow_partial: bool) -> Profiled:
        """Profile a run as it stands.

        Raises:
            RunNotFoundError: there is no such run, or it was never started.
            InputError: its files are damaged, or rollouts are missing and that is not accepted.
        """
        files, manifest = self._run(run_id)
        live = self._live(files)
        profile = Profile(live.tables(), allow_partial=allow_partial)
        columns = cache(live.columns)
        return Profiled(profile, columns, lambda ids: columns().rows(ids), manifest, run_id)

    def live(self, run_id: str) -> JsonObject:
        """Return the statistics of a run that are kept up to date: the cost is that of what is new.

        Raises:
            RunNotFoundError: there is no such run, or it was never started.
            InputError: its rollouts are damaged.
        """
        return {"run_id": run_id, **self._live(self._run(run_id)[0]).summary()}

    def of_request(self, request: ProfileRequest) -> Profiled:
        """Profile posted rows, or files inside the data directory.

        Raises:
            PayloadTooLargeError: too many rows.
            InputError: rows or files are wrong, or rollouts are missing and that is not accepted.
        """
        if request.rollouts_path is not None:
            path = self._store.resolve(request.rollouts_path)
            inputs = self._store.resolve(request.inputs_path) if request.inputs_path is not None else None
            tables = read_tables(inputs, path)
            profile = Profile(tables, allow_partial=request.allow_partial)
            columns = cache(partial(_columns, RunFiles(path), tables))
            return Profiled(profile, columns, lambda ids: columns().rows(ids))
        if request.rollouts is None:
            raise InputError("the request names no rollouts")
        rollouts = self._within("rollouts", request.rollouts)
        inputs_given = None if request.inputs is None else self._within("inputs", request.inputs)
        tables = standing_in(rollouts) if inputs_given is None else collect_tables(inputs_given, rollouts)
        profile = Profile(tables, allow_partial=request.allow_partial)
        return Profiled(profile, cache(partial(_posted_columns, rollouts)), partial(_posted_rows, rollouts))

    def compare(self, a: str, b: str, *, force: bool) -> JsonObject:
        """Set run `b` beside run `a`.

        Raises:
            RunNotFoundError: one of them does not exist, or was never started.
            ConflictError: they differ in dataset or verifier, and it is not forced.
            InputError: their files are damaged, or no agent is in both.
        """
        return compare_files(self._run(a)[0], self._run(b)[0], force=force)

    def _live(self, files: RunFiles) -> "LiveRun":
        """Return what was read of a run before; that of the runs that were asked about longest ago is forgotten."""
        from rollmill.live import LiveRun

        with self._lock:
            run = self._followed.pop(files, None) or LiveRun(files)
            self._followed[files] = run
            while len(self._followed) > self._max_followed:
                self._followed.pop(next(iter(self._followed)))
        return run

    def _run(self, run_id: str) -> tuple[RunFiles, Manifest]:
        files = self._store.files(run_id)
        manifest = read_manifest(files.manifest)
        if manifest is None:
            raise RunNotFoundError(f"the run {run_id!r} was never started", run_id=run_id)
        return files, manifest

    def _within(self, name: str, rows: list[Row]) -> list[Row]:
        if len(rows) > self._max_rows:
            raise PayloadTooLargeError(
                f"{name}: {len(rows)} rows, more than {self._max_rows} (setting max_rows); "
                f"put them into a file in the data directory and send {name}_path"
            )
        return rows


def _columns(files: RunFiles, tables: RunTables) -> "RunColumns":
    from rollmill.artifacts.columns import read_columns

    return read_columns(files, tables.columns, tables.input_columns)


def _posted_columns(rollouts: list[Row]) -> "RunColumns":
    from rollmill.artifacts.column_arrays import columns_of, joined
    from rollmill.artifacts.columns import RunColumns
    from rollmill.artifacts.rollout_lines import RolloutLines
    from rollmill.artifacts.rollout_rows import AnswerFields

    reader = RolloutLines(AnswerFields())
    batches = (rollouts[start : start + _BATCH] for start in range(0, len(rollouts), _BATCH))
    parts = [columns_of(reader.chunk([dumps(row) for row in batch], range(len(batch)))) for batch in batches]
    return RunColumns(Path("posted rows"), joined(parts))


def _posted_rows(rollouts: list[Row], ids: Iterable[str]) -> dict[str, Row]:
    wanted = set(ids)
    return {key: row for row in rollouts if (key := str(row_key(row))) in wanted}
