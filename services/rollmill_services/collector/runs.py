import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import get_args
from weakref import WeakValueDictionary

import structlog

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.run_store import RunStore
from rollmill.client.file_limit import check_file_limit, raise_file_limit
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import Collector
from rollmill.collection.meter import RolloutMeter
from rollmill.contracts.runs import RunRequest, RunState, RunStatus
from rollmill.errors import (
    ConflictError,
    ConnectError,
    OverloadedError,
    RollmillError,
    RunNotFoundError,
    ServiceNotFoundError,
)
from rollmill.ids import new_run_id
from rollmill.observability.meters import Gauge, Meter, Numbers
from rollmill_services.collector.folder import CHANGEABLE, RunFolder, accepted_runs

log = structlog.get_logger(__name__)

RECOVERY_ATTEMPTS = 12
RECOVERY_CAP_SECONDS = 30.0
_STOPPED = ("interrupted", "stopped", "cancelled", "failed")


class TooManyRunsError(OverloadedError):
    """As many runs are at work as the service is set to have at once."""

    slug, title, status = "too-many-runs", "Too many runs", 429


@dataclass(slots=True)
class ActiveRun:
    """A run that this process works on, or has worked on."""

    folder: RunFolder
    collector: Collector
    task: "asyncio.Task[None] | None" = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        """Whether nothing more will be written."""
        return self.task is None or self.task.done()

    def notify(self) -> None:
        """Wake whoever follows the run."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Return at the next commit, or at the end."""
        await self._changed.wait()


class Runs:
    """The runs of one collector service.

    Args:
        store: where runs are kept.
        client: the way to the agents.
        topology_digest: goes into the manifests.
        max_runs: runs at work at once.
    """

    def __init__(self, store: RunStore, client: ServiceClient, *, topology_digest: str | None, max_runs: int) -> None:
        self._store = store
        self._client = client
        self._topology_digest = topology_digest
        self._max_runs = max_runs
        self._meter = RolloutMeter()
        self._active: dict[str, ActiveRun] = {}
        self._starting: set[str] = set()
        """Runs whose tasks are being checked; they may yet be refused."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, request: RunRequest, uploaded: bytes | None = None) -> RunStatus:
        """Accept a run and start it; the same request again is the same run.

        Raises:
            InputError: the request or its tasks are wrong; nothing is kept then.
            ConflictError: the id is taken by another run.
            TooManyRunsError: too many runs are at work.
        """
        folder = RunFolder(self._store, request.id or new_run_id(request.name))
        async with self._lock(folder.run_id):
            if folder.exists():
                await asyncio.to_thread(folder.check_same, request, uploaded)
                await self._go_on(folder, request)
            else:
                await self._begin(folder, request, uploaded)
        return self.status(folder.run_id)

    def status(self, run_id: str) -> RunStatus:
        """Return a run's numbers, of this process or of an earlier one.

        Raises:
            RunNotFoundError: there is no such run.
        """
        active = self._active.get(run_id)
        if active is not None:
            return active.collector.status()
        manifest = read_manifest(self._store.files(run_id).manifest)
        if manifest is not None:
            return manifest.status()
        if run_id in self._starting:
            raise RunNotFoundError(f"the run {run_id!r} is still being checked", run_id=run_id)
        return RunFolder(self._store, run_id).unbegun()

    def files(self, run_id: str) -> RunFiles:
        """Return the names of a run's files.

        Raises:
            RunNotFoundError: there is no such run.
        """
        active = self._active.get(run_id)
        return active.folder.files if active is not None else self._store.files(run_id)

    @property
    def meters(self) -> Sequence[Meter]:
        """What is told about the runs of this process at `/metrics`."""
        gauge = partial(_gauge, lambda: [run.collector for run in self._active.values()])
        return [
            *self._meter.meters,
            Gauge("rollmill_runs", "Runs of this process.", "state", read=self._states),
            gauge("rollmill_rollouts_in_flight", "Attempts at work.", lambda c: c.status().in_flight),
            gauge("rollmill_rollouts_waiting", "Rollouts read that wait for their turn.", lambda c: c.waiting),
            gauge("rollmill_rollouts_left", "Rollouts not settled.", lambda c: c.stats.left),
            gauge("rollmill_rollouts_concurrency", "Most attempts at once.", lambda c: c.status().concurrency),
        ]

    def _states(self) -> Numbers:
        states = Counter(run.collector.stats.state for run in self._active.values())
        return {(state,): states[state] for state in get_args(RunState)}

    def _on_disk(self, but: Collection[str]) -> "list[RunStatus]":
        found = []
        for run_id in {*self._store.runs(), *accepted_runs(self._store)}.difference(but):
            try:
                found.append(self.status(run_id))
            except RollmillError as error:
                log.warning("run_unreadable", run_id=run_id, error=str(error))
        return found

    async def list(self) -> list[RunStatus]:
        """Return every run, newest first; a folder that is no run is left out."""
        active = {run_id: run.collector.status() for run_id, run in self._active.items()}
        others = await asyncio.to_thread(self._on_disk, {*active, *self._starting})
        return sorted([*active.values(), *others], key=lambda status: status.created_at, reverse=True)

    def active(self, run_id: str) -> ActiveRun | None:
        """Return the run if this process knows it; None for one that only the files tell of."""
        return self._active.get(run_id)

    async def cancel(self, run_id: str) -> RunStatus:
        """Stop a run; what is settled stays, and a resume goes on from there. Cancelling twice is no error."""
        active = self._active.get(run_id)
        if active is not None and active.task is not None and not active.done:
            active.collector.stats.state = "cancelled"
            if not active.task.cancelling():  # a second cancellation would cut the first one's tidying short
                active.task.cancel()
            await asyncio.wait([active.task])
            await active.collector.cancelled_before_start()
            active.notify()  # a task that is cancelled before it began does not do it itself
        return self.status(run_id)

    async def pause(self, run_id: str) -> RunStatus:
        """Start no further rollouts, after a restart of the service neither; those in flight are finished.

        Raises:
            ConflictError: the run is not at work.
        """
        async with self._lock(run_id):
            await self._pause(self._at_work(run_id), True)
        return self.status(run_id)

    async def resume(self, run_id: str) -> RunStatus:
        """Go on with a paused run, or start an interrupted, stopped, cancelled or failed one again where it stopped."""
        async with self._lock(run_id):
            active = self._active.get(run_id)
            if active is not None and not active.done:
                await self._pause(active, False)
            elif self.status(run_id).state != "finished":
                await self._start_again(RunFolder(self._store, run_id))
        return self.status(run_id)

    async def set_concurrency(self, run_id: str, concurrency: int) -> RunStatus:
        """Change the number of rollouts in flight, for good.

        Raises:
            ConfigError: this process may not have as many open files.
            ConflictError: the run is not at work.
        """
        check_file_limit(concurrency, raise_file_limit())
        async with self._lock(run_id):
            active = self._at_work(run_id)
            active.collector.set_concurrency(concurrency)
            paused = active.collector.stats.state == "paused"
            await asyncio.to_thread(active.folder.change, {"concurrency": concurrency}, paused=paused)
        return self.status(run_id)

    async def _pause(self, active: ActiveRun, paused: bool) -> None:
        active.collector.pause(paused)  # at once, even if the disk is full and cannot keep it
        await asyncio.to_thread(active.folder.change, {}, paused=paused)

    async def recover(self) -> None:
        """Go on with every run that an earlier process left unfinished, however it ended."""
        interrupted = [status.run_id for status in await self.list() if status.state == "interrupted"]
        unfinished = [run_id for run_id in interrupted if RunFolder(self._store, run_id).exists()]
        async with asyncio.TaskGroup() as group:
            for run_id in unfinished:
                group.create_task(self._recover(run_id))

    async def _recover(self, run_id: str) -> None:
        """Start one run again; its agents may need a while to register, after a restart of everything."""
        for attempt in range(RECOVERY_ATTEMPTS):
            try:
                await self._take_up(run_id)
            except (ServiceNotFoundError, ConnectError) as error:
                log.info("run_waits_for_services", run_id=run_id, error=str(error))
                await asyncio.sleep(min(RECOVERY_CAP_SECONDS, 2.0**attempt))
            except RollmillError as error:
                log.warning("run_not_recovered", run_id=run_id, error=str(error))
                return
            else:
                log.info("run_recovered", run_id=run_id)
                return
        log.warning("run_not_recovered", run_id=run_id, error="its agents did not come back")

    async def _take_up(self, run_id: str) -> None:
        """Start a run as it was left: one that was paused stays so, until somebody resumes it."""
        async with self._lock(run_id):
            if run_id not in self._active:  # else somebody was faster
                folder = RunFolder(self._store, run_id)
                with self._place(run_id):
                    await self._start(folder, folder.request(), paused=folder.paused)

    async def close(self) -> None:
        """Stop every run, so that each is settled on disk and can be resumed."""
        tasks = [run.task for run in self._active.values() if run.task is not None and not run.done]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _begin(self, folder: RunFolder, request: RunRequest, uploaded: bytes | None) -> None:
        if self._taken(folder.run_id):
            raise ConflictError(f"there is another run called {folder.run_id!r}; choose another id")
        with self._place(folder.run_id):
            try:
                await asyncio.to_thread(folder.write, request, uploaded)
                await self._start(folder, request)
            except Exception:
                await asyncio.to_thread(folder.discard)
                raise

    async def _go_on(self, folder: RunFolder, request: RunRequest) -> None:
        """Start a run again that stands still, if that is asked for or if it was accepted but never begun."""
        begun = folder.run_id in self._active or folder.files.manifest.exists()
        if not begun or (request.resume and self.status(folder.run_id).state in _STOPPED):
            await self._start_again(folder, request.model_dump(include=CHANGEABLE))

    async def _start_again(self, folder: RunFolder, change: Mapping[str, object] | None = None) -> None:
        if not folder.exists():
            raise ConflictError(f"the run {folder.run_id!r} was not started here; go on with it where it was")
        with self._place(folder.run_id):
            request = await asyncio.to_thread(folder.change, change or {}, paused=False)
            await self._start(folder, request)

    async def _start(self, folder: RunFolder, request: RunRequest, *, paused: bool = False) -> None:
        check_file_limit(request.concurrency, raise_file_limit())
        plan = await asyncio.to_thread(folder.plan, request, self._topology_digest)
        collector = Collector(plan, self._client, on_commit=lambda: run.notify(), meter=self._meter)
        run = ActiveRun(folder, collector)
        await collector.prepare()
        collector.pause(paused)
        self._active[folder.run_id] = run
        run.task = asyncio.create_task(self._work(run), name=f"run {folder.run_id}")

    async def _work(self, run: ActiveRun) -> None:
        try:
            status = await run.collector.run()
            log.info("run_finished", run_id=status.run_id, completed=status.completed, failed=status.failed)
        except RollmillError as error:
            log.error("run_failed", run_id=run.folder.run_id, error=str(error))
        except Exception as error:
            run.collector.stats.stop("failed", "the collector failed; its log says why")
            log.exception("run_failed", run_id=run.folder.run_id, error=str(error))
        finally:
            run.notify()

    def _at_work(self, run_id: str) -> ActiveRun:
        active = self._active.get(run_id)
        if active is None or active.done:
            raise ConflictError(f"the run {run_id!r} is not at work: {self.status(run_id).state}")
        return active

    def _taken(self, run_id: str) -> bool:
        """Say whether files of a run that was not made by a request, such as the command line's, go by this id."""
        try:
            return self._store.files(run_id).manifest.is_file()
        except RunNotFoundError:
            return False

    def _lock(self, run_id: str) -> asyncio.Lock:
        """Return what keeps two requests from starting the same run; it goes when nobody holds it."""
        return self._locks.setdefault(run_id, asyncio.Lock())

    @contextmanager
    def _place(self, run_id: str) -> Iterator[None]:
        at_work = sum(not run.done for run in self._active.values()) + len(self._starting)
        if at_work >= self._max_runs:
            raise TooManyRunsError(f"{self._max_runs} runs are at work", retry_after=10.0)
        self._starting.add(run_id)
        try:
            yield
        finally:
            self._starting.discard(run_id)


def _gauge(
    collectors: Callable[[], list[Collector]], name: str, meaning: str, number: Callable[[Collector], int]
) -> Gauge:
    """Make the sum of a number over the runs that are at work."""

    def read() -> Numbers:
        return {(): sum(number(one) for one in collectors() if one.stats.state in ("running", "paused"))}

    return Gauge(name, meaning, read=read)
