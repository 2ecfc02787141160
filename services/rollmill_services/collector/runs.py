import asyncio
from dataclasses import dataclass, field

import structlog
from rollmill.artifacts.run_store import RunStore

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import read_manifest
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import Collector
from rollmill.contracts.runs import RunRequest, RunStatus
from rollmill.errors import ConflictError, OverloadedError, RollmillError
from rollmill.ids import new_run_id
from rollmill_services.collector.folder import RunFolder

log = structlog.get_logger(__name__)


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
        self._active: dict[str, ActiveRun] = {}

    async def create(self, request: RunRequest, uploaded: bytes | None = None) -> RunStatus:
        """Accept a run and start it; the same request again is the same run.

        Raises:
            InputError: the request or its tasks are wrong; nothing is kept then.
            ConflictError: the id is taken by another run.
            OverloadedError: too many runs are at work.
        """
        folder = RunFolder(self._store, request.id or new_run_id(request.name))
        if folder.exists():
            await asyncio.to_thread(folder.check_same, request, uploaded)
            if request.resume and self.status(folder.run_id).state in ("interrupted", "cancelled", "failed"):
                await self._start(folder, folder.request())
            return self.status(folder.run_id)
        self._check_room()
        try:
            await asyncio.to_thread(folder.write, request, uploaded)
            await self._start(folder, request)
        except RollmillError:
            if folder.run_id not in self._active:
                await asyncio.to_thread(folder.discard)
            raise
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
        if manifest is None:
            raise ConflictError(f"the run {run_id!r} has no manifest: it was never started")
        return manifest.status()

    def files(self, run_id: str) -> RunFiles:
        """Return the names of a run's files.

        Raises:
            RunNotFoundError: there is no such run.
        """
        active = self._active.get(run_id)
        return active.folder.files if active is not None else self._store.files(run_id)

    def list(self) -> list[RunStatus]:
        """Return every run, newest first; a folder that is no run is left out."""
        found = []
        for run_id in self._store.runs():
            try:
                found.append(self.status(run_id))
            except RollmillError as error:
                log.warning("run_unreadable", run_id=run_id, error=str(error))
        return sorted(found, key=lambda status: status.created_at, reverse=True)

    def active(self, run_id: str) -> ActiveRun | None:
        """Return the run if this process knows it; None for one that only the files tell of."""
        return self._active.get(run_id)

    async def cancel(self, run_id: str) -> RunStatus:
        """Stop a run; what is settled stays, and a resume goes on from there. Cancelling twice is no error."""
        active = self._active.get(run_id)
        if active is not None and active.task is not None and not active.done:
            active.collector.stats.state = "cancelled"
            active.task.cancel()
            await asyncio.wait([active.task])
        return self.status(run_id)

    def pause(self, run_id: str) -> RunStatus:
        """Start no further rollouts; those in flight are finished.

        Raises:
            ConflictError: the run is not at work.
        """
        self._at_work(run_id).collector.pause()
        return self.status(run_id)

    async def resume(self, run_id: str) -> RunStatus:
        """Go on with a paused run, or start an interrupted, cancelled or failed one again where it stopped."""
        active = self._active.get(run_id)
        if active is not None and not active.done:
            active.collector.pause(False)
        elif self.status(run_id).state != "finished":
            folder = RunFolder(self._store, run_id)
            await self._start(folder, await asyncio.to_thread(folder.request))
        return self.status(run_id)

    def set_concurrency(self, run_id: str, concurrency: int) -> RunStatus:
        """Change the number of rollouts in flight.

        Raises:
            ConflictError: the run is not at work.
        """
        self._at_work(run_id).collector.set_concurrency(concurrency)
        return self.status(run_id)

    async def close(self) -> None:
        """Stop every run, so that each is settled on disk and can be resumed."""
        tasks = [run.task for run in self._active.values() if run.task is not None and not run.done]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _start(self, folder: RunFolder, request: RunRequest) -> None:
        self._check_room()
        plan = await asyncio.to_thread(folder.plan, request, self._topology_digest)
        collector = Collector(plan, self._client, on_commit=lambda: run.notify())
        run = ActiveRun(folder, collector)
        await collector.prepare()
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

    def _check_room(self) -> None:
        if sum(not run.done for run in self._active.values()) >= self._max_runs:
            raise OverloadedError(f"{self._max_runs} runs are at work", retry_after=10.0)
