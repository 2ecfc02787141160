"""One run with files: what the command line, the collector service and library users share."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest, check_same_run
from rollmill.artifacts.outputs import check_apart, run_to_go_on_with
from rollmill.artifacts.reader import iter_lines, whole_lines_size
from rollmill.artifacts.resume import Progress, read_progress
from rollmill.artifacts.writer import JsonlWriter, StorageError
from rollmill.client.service_client import ServiceClient
from rollmill.collection.agent_runner import AgentRunner
from rollmill.collection.aggregation import aggregate_run
from rollmill.collection.budget import BudgetWatch
from rollmill.collection.dispatcher import Dispatcher
from rollmill.collection.expansion import Expansion, Survey, expand, survey
from rollmill.collection.fail_fast import FailFast
from rollmill.collection.file_sink import FileSink
from rollmill.collection.grading import grading_of
from rollmill.collection.limiter import Limiter
from rollmill.collection.meter import RolloutMeter
from rollmill.collection.metrics_file import MetricsFile, complete_metrics_file
from rollmill.collection.outcomes import Assignment
from rollmill.collection.prompts import PromptConfig
from rollmill.collection.stats import RunStats
from rollmill.contracts import rows
from rollmill.contracts.json import canonical, dumps
from rollmill.contracts.rows import Row, agent_name, row_key, tokens_used
from rollmill.contracts.runs import RunBudget, RunOptions, RunState, RunStatus
from rollmill.contracts.shards import ShardNumber
from rollmill.errors import ConflictError, InputError, ServiceNotFoundError
from rollmill.ids import new_run_id

log = structlog.get_logger(__name__)

MANIFEST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class CollectionPlan:
    """What to collect, and where to."""

    input: Path
    output: Path
    options: RunOptions = field(default_factory=RunOptions)
    prompt: PromptConfig | None = None
    run_id: str = ""
    """Made from time and output name when empty."""
    topology_digest: str | None = None
    resume: bool = False
    """Go on with what is there; nothing there is a fresh start."""
    overwrite: bool = False
    """Delete what is there."""


class Collector:
    """Collects the rollouts of one plan. `prepare` finds every fault before anything runs; `run` does the work.

    Args:
        plan: what to collect.
        client: the way to the agents.
        on_commit: called after each group commit of the rollouts file.
        meter: counts how the rollouts go.
    """

    def __init__(
        self,
        plan: CollectionPlan,
        client: ServiceClient,
        *,
        on_commit: Callable[[], None] = lambda: None,
        meter: RolloutMeter | None = None,
    ) -> None:
        self.files = RunFiles.at(plan.output)
        self.run_id = plan.run_id or new_run_id(plan.output.stem)
        self.stats = RunStats(self.run_id, budget=_budget(plan.options))
        self.warnings: list[str] = []
        self._plan = plan
        self._client = client
        self._on_commit = on_commit
        self._meter = meter or RolloutMeter()
        self._limiter = Limiter(plan.options.concurrency)
        self._expansion = _expansion(plan)
        self._survey: Survey | None = None
        self._manifest: Manifest | None = None
        self._progress = Progress()
        self._progress_sizes = (0, 0)
        self._dispatcher: Dispatcher | None = None
        self._owned = False

    async def prepare(self) -> None:
        """Check the input, the output and, on a resume, that it is the same run. Nothing is run yet.

        Raises:
            InputError: the task file has faults; lists them all.
            ConflictError: the output exists, or belongs to another run.
            ServiceNotFoundError: an agent is not there; lists all that are not.
        """
        found = await asyncio.to_thread(survey, self._plan.input, self._expansion)
        self._survey = found
        self.warnings = list(found.warnings)
        self.stats.expect(found.rollouts)
        await self._check_agents(found.rollouts)
        digests = _digests(self._plan, self._expansion, found)
        old = await asyncio.to_thread(self._existing)
        if old is not None:
            check_same_run(old.digests, digests, self.files.manifest)
            self.run_id = self.stats.run_id = old.run_id
            self.stats.created_at = old.created_at
            self.stats.earlier_seconds = old.wall_seconds
            self._progress_sizes = await asyncio.to_thread(self._sizes)
            self._progress = await asyncio.to_thread(self._read_progress)
        grading = await grading_of(found.rollouts, self._client.directory)
        self._manifest = Manifest(
            run_id=self.run_id,
            created_at=self.stats.created_at,
            input_path=str(self._plan.input),
            digests=digests,
            verifiers=grading.verifiers,
            scoring=grading.scoring,
        )

    async def run(self) -> RunStatus:
        """Settle every rollout, or as many as the budget allows, aggregate, and seal the manifest.

        Raises:
            RollmillError: the run itself failed (storage, metrics), not some rollout.
            asyncio.CancelledError: stopped; what is settled is on disk, and a resume goes on from there.
        """
        if self._survey is None:
            await self.prepare()
        self.stats.start()
        try:
            stopped = await self._collect()
            await complete_metrics_file(self.files, rollouts=self.status().completed)
            if self._plan.options.aggregate:
                await self._aggregate()
        except asyncio.CancelledError:
            await self._seal("cancelled" if self.stats.state == "cancelled" else "interrupted")
            raise
        except BaseExceptionGroup as group:
            error = _first(group)
            await self._seal("failed", str(error))
            raise error from None
        except Exception as error:
            await self._seal("failed", str(error) or type(error).__name__)
            raise
        await self._seal("stopped" if stopped else "finished", stopped)
        return self.status()

    async def cancelled_before_start(self) -> None:
        """Leave a manifest that says so, for a prepared run whose work was cancelled before it began."""
        if not self.files.manifest.exists():
            self.stats.stop("cancelled")
            await self._write_manifest("cancelled")

    def status(self) -> RunStatus:
        """Return the run's numbers as they stand."""
        return self.stats.status(
            in_flight=self._limiter.in_use,
            concurrency=self._limiter.limit,
            windows=self._dispatcher.windows() if self._dispatcher else None,
        )

    @property
    def waiting(self) -> int:
        """Rollouts that have been read and are not in flight."""
        return self._dispatcher.waiting if self._dispatcher else 0

    def pause(self, paused: bool = True) -> None:
        """Stop, or go on, starting rollouts; those in flight are finished."""
        self._limiter.set_paused(paused)
        if self.stats.state in ("running", "paused"):
            self.stats.state = "paused" if paused else "running"

    def set_concurrency(self, concurrency: int) -> None:
        """Change the number of rollouts in flight from now on."""
        self._limiter.set_limit(concurrency)

    async def _check_agents(self, agents: Iterable[str]) -> None:
        directory = self._client.directory
        missing = []
        for agent in agents:
            try:
                replica = await directory.pick(agent)
            except ServiceNotFoundError:
                missing.append(agent)
                continue
            if replica.info.kind != "agent":
                raise InputError(f"{agent!r} is a {replica.info.kind} service; rows need an agent")
        if missing:
            known = sorted({service.name for service in await directory.services() if service.kind == "agent"})
            raise ServiceNotFoundError(
                f"no agent is called {', '.join(map(repr, missing))}; the agents are: {', '.join(known) or 'none'}"
            )

    def _existing(self) -> Manifest | None:
        check_apart([self._plan.input], self.files)
        return run_to_go_on_with(self.files, resume=self._plan.resume, overwrite=self._plan.overwrite)

    def _sizes(self) -> tuple[int, int]:
        return whole_lines_size(self.files.rollouts), whole_lines_size(self.files.failures)

    def _read_progress(self) -> Progress:
        def earlier(row: Row) -> None:
            reward = row.get(rows.REWARD)
            self.stats.completed(agent_name(row) or "", float(reward or 0.0), earlier=True)
            spent(row)

        def spent(row: Row) -> None:
            self.stats.tokens += tokens_used(row)

        return read_progress(
            self.files,
            max_attempts=self._plan.options.max_attempts,
            on_rollout=earlier,
            on_failed_attempt=spent,
            on_given_up=lambda row: self.stats.failed(agent_name(row) or "", earlier=True),
        )

    async def _collect(self) -> str:
        """Run what is not settled; return why the budget left some of it, empty when all is settled."""
        options = self._plan.options
        runner = AgentRunner(self._client, run_id=self.run_id, timeout_seconds=options.timeout_seconds)
        async with AsyncExitStack() as stack:
            rollouts = JsonlWriter(self.files.rollouts, on_commit=lambda _: self._on_commit())
            writers = [rollouts, JsonlWriter(self.files.failures), JsonlWriter(self.files.inputs)]
            for writer in writers:
                await stack.enter_async_context(writer)
            await self._take_over()
            metrics = MetricsFile(self.files, earlier=self._progress.completed)
            stack.push_async_callback(metrics.stop)
            fail_fast = FailFast(count=options.fail_fast_count, share=options.fail_fast_share)
            watch = BudgetWatch(self.stats, lambda: dispatcher.stop())
            sink = FileSink(writers[0], writers[1], self.stats, fail_fast, self._meter, watch.check)
            self._dispatcher = dispatcher = Dispatcher(
                runner,
                sink,
                self._limiter,
                max_attempts=options.max_attempts,
                earlier_attempts=self._progress.attempts,
                grace_seconds=options.stop_grace_seconds,
            )
            ended = asyncio.Event()
            ticker = asyncio.create_task(
                self._tick(ended, lambda: metrics.keep_up(self._progress.completed + rollouts.committed_lines))
            )
            try:
                async with aclosing(self._assignments(writers[2])) as assignments:
                    with watch:
                        await dispatcher.run(assignments)
            finally:
                self._dispatcher = None
                ended.set()  # not cancelled: a thread that is writing the manifest must not meet the one that seals it
                await asyncio.wait([ticker])
            return watch.reason if self.stats.left else ""

    async def _take_over(self) -> None:
        """Become the run's owner, now that its files are locked.

        Raises:
            ConflictError: another process went on with the run after `prepare` had looked at it.
        """
        if await asyncio.to_thread(self._sizes) != self._progress_sizes:
            raise ConflictError(f"{self.files.rollouts}: another process has written this run meanwhile; start again")
        self._owned = True
        await self._write_manifest("running")

    async def _assignments(self, inputs: JsonlWriter) -> AsyncGenerator[Assignment, None]:
        """Write each row to the inputs file unless it is there already, and hand on those not settled."""
        written = await asyncio.to_thread(_count_lines, self.files.inputs)
        for number, row in enumerate(self._rows()):
            line = dumps(row)
            if number >= written:
                await inputs.append(line)
            key = row_key(row)
            if key not in self._progress.done:
                yield Assignment(key, agent_name(row) or "", row, line)
            elif number % 1000 == 0:
                await asyncio.sleep(0)  # a long settled stretch must not hold up the loop

    def _rows(self) -> Iterator[Row]:
        return expand(self._plan.input, self._expansion)

    async def _aggregate(self) -> None:
        agents = [name for name, agent in self.status().agents.items() if agent.completed]
        await aggregate_run(self.files, agents, self._client)

    async def _tick(self, ended: asyncio.Event, then: Callable[[], None]) -> None:
        while not ended.is_set():
            try:
                await asyncio.wait_for(ended.wait(), MANIFEST_SECONDS)
            except TimeoutError:
                await self._try_to_write_manifest(self.stats.state)
                then()

    async def _seal(self, state: RunState, error: str = "") -> None:
        if state in ("finished", "stopped") and self._owned:
            await self._seal_ended(state, error)
            return
        self.stats.stop(state, error)
        if self._owned:  # else the manifest on disk is that of another process, or of the run as it was left
            await self._try_to_write_manifest(state)

    async def _seal_ended(self, state: RunState, reason: str) -> None:
        """Nobody is told that the run has ended before its manifest says so."""
        self.stats.error = reason
        try:
            await self._write_manifest(state)
        except StorageError as error:
            self.stats.stop("failed", str(error))
            raise
        self.stats.stop(state, reason)

    async def _try_to_write_manifest(self, state: RunState) -> None:
        """Write it when something else matters more: the run that goes on, or the error that ended it."""
        try:
            await self._write_manifest(state)
        except StorageError as error:
            log.warning("manifest_not_written", path=str(self.files.manifest), error=str(error))

    async def _write_manifest(self, state: RunState) -> None:
        if self._manifest is None:
            raise RuntimeError("prepare() comes first")
        status = self.status()
        counts = Counts(expected=status.expected, completed=status.completed, failed=status.failed)
        change = {
            "state": state,
            "error": status.error,
            "counts": counts,
            "mean_reward": status.mean_reward,
            "agents": status.agents,
            "tokens": status.tokens,
            "wall_seconds": status.wall_seconds,
            "budget": status.budget,
        }
        await asyncio.to_thread(self._manifest.model_copy(update=change).write, self.files.manifest)


def _expansion(plan: CollectionPlan) -> Expansion:
    options = plan.options
    return Expansion(
        num_repeats=options.num_repeats,
        add_seed=options.add_seed,
        limit=options.limit,
        shard=ShardNumber.parse(options.shard) if options.shard else None,
        agent=options.agent,
        overrides=options.overrides(),
        prompt=plan.prompt,
    )


def _budget(options: RunOptions) -> RunBudget:
    return RunBudget.model_validate(options.model_dump(include=set(RunBudget.model_fields)))


def _digests(plan: CollectionPlan, expansion: Expansion, found: Survey) -> Digests:
    prompt = hashlib.sha256(canonical(plan.prompt.model_dump())).hexdigest() if plan.prompt else None
    return Digests(
        input=found.digest,
        prompt=prompt,
        overrides=expansion.digest(),
        topology=plan.topology_digest,
        shard=plan.options.shard,
    )


def _count_lines(path: Path) -> int:
    return sum(1 for _ in iter_lines(path)) if path.exists() else 0


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error behind a task group's: what the user has to know."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
