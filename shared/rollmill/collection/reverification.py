"""Grades stored rollouts again: the verifier sees the rows that it saw then, and no model is asked."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest, Source, read_manifest
from rollmill.artifacts.outputs import check_apart, run_to_go_on_with
from rollmill.artifacts.reader import read_rollouts, whole_lines_size
from rollmill.artifacts.writer import JsonlWriter
from rollmill.client.service_client import ServiceClient
from rollmill.collection.aggregation import aggregate_run
from rollmill.collection.dispatcher import Dispatcher
from rollmill.collection.grading import grading_of, resources_of
from rollmill.collection.limiter import Limiter
from rollmill.collection.outcomes import Assignment
from rollmill.collection.regrading import Changes, Grader, GradingSink, Verifying
from rollmill.collection.stats import RunStats
from rollmill.collection.stored_rollouts import StoredRollouts, find_stored
from rollmill.contracts import rows
from rollmill.contracts.json import dumps
from rollmill.contracts.rows import RowKey, agent_name, row_key
from rollmill.contracts.runs import RunState, RunStatus
from rollmill.errors import ConflictError, InputError, NotFoundError, ServiceNotFoundError
from rollmill.ids import new_run_id

UNSAFE = "unsafe_"
"""Begins the name of an output whose verifier does not promise that stored rollouts can be graded again."""
_MODE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ReverifyPlan:
    """What to grade again, and where to."""

    rollouts: Path
    inputs: Path
    output: Path
    failed_only: bool = False
    """Take the rollouts whose grading failed, and no others."""
    force: bool = False
    """Also where the verifier does not promise that it needs nothing but the row."""
    resume: bool = False
    overwrite: bool = False
    concurrency: int = 64
    timeout_seconds: float = 600.0
    """For each attempt."""
    max_attempts: int = 3


class Reverification:
    """Grades the rollouts of one plan. `prepare` finds every fault before anything runs; `run` does the work.

    Args:
        plan: what to grade again.
        client: the way to the resources servers.
    """

    def __init__(self, plan: ReverifyPlan, client: ServiceClient) -> None:
        self.files = RunFiles.at(plan.output)
        """Where the run is written; `prepare` puts `unsafe_` before the name when it has to."""
        self.stats = RunStats(new_run_id(plan.output.stem))
        self.changes = Changes()
        self.stored = StoredRollouts(plan.inputs, plan.rollouts, plan.failed_only)
        self._plan = plan
        self._client = client
        self._limiter = Limiter(plan.concurrency)
        self._done: dict[RowKey, float] = {}
        self._verifiers: dict[str, Verifying] = {}
        self._manifest: Manifest | None = None
        self._size = 0
        self._owned = False

    async def prepare(self) -> None:
        """Read the source, ask the servers whether they can grade it again, and look at the output.

        Raises:
            InputError: the source has faults, or a server cannot grade again and it is not forced; lists all.
            ConflictError: the output exists, or was made from something else.
            ServiceNotFoundError: an agent or its resources server is not there.
        """
        plan = self._plan
        self.stored = await asyncio.to_thread(find_stored, plan.inputs, plan.rollouts, failed_only=plan.failed_only)
        self.stats.expect(self.stored.agents)
        self._verifiers = {agent: await self._verifier(agent) for agent in self.stored.agents}
        unsafe = {agent: one for agent, one in self._verifiers.items() if one.mode != "stateless"}
        if unsafe and not plan.force:
            raise InputError(_refusal(unsafe))
        if unsafe and not plan.output.name.startswith(UNSAFE):
            self.files = RunFiles.at(plan.output.with_name(UNSAFE + plan.output.name))
        self._manifest = await self._new_manifest()
        await asyncio.to_thread(self._take_output, self._manifest)

    async def run(self) -> RunStatus:
        """Grade every rollout, aggregate, and seal the manifest.

        Raises:
            RollmillError: the run itself failed (storage, metrics), not some rollout.
            asyncio.CancelledError: stopped; what is graded is on disk, and a resume goes on from there.
        """
        if self._manifest is None:
            await self.prepare()
        self.stats.start()
        try:
            await self._grade_all()
            graded = [name for name, agent in self.status().agents.items() if agent.completed]
            await aggregate_run(self.files, graded, self._client)
        except asyncio.CancelledError:
            await self._seal("interrupted")
            raise
        except Exception as error:
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            await self._seal("failed", str(cause))
            raise cause from None
        await self._seal("finished")
        return self.status()

    def status(self) -> RunStatus:
        """Return the run's numbers as they stand."""
        return self.stats.status(in_flight=self._limiter.in_use, concurrency=self._limiter.limit)

    async def _verifier(self, agent: str) -> Verifying:
        name = await resources_of(agent, self._client.directory)
        if not name:
            known = sorted({service.name for service in await self._client.directory.services()})
            raise ServiceNotFoundError(
                f"no agent {agent!r} tells which resources server grades its rollouts; "
                f"the services are: {', '.join(known) or 'none'}"
            )
        try:
            reply = await self._client.call(name, "/reverify_mode", method="GET", timeout=_MODE_SECONDS)
        except ServiceNotFoundError:
            raise
        except NotFoundError:  # a server that does not know the question
            return Verifying(name, "unknown")
        return Verifying(name, str(reply.json()))

    async def _new_manifest(self) -> Manifest:
        plan, stored = self._plan, self.stored
        old = await asyncio.to_thread(read_manifest, RunFiles.at(plan.rollouts).manifest)
        grading = await grading_of(stored.agents, self._client.directory)
        source = Source(
            path=str(stored.source),
            run_id=old.run_id if old else "",
            rollouts=stored.source_digest,
            inputs=stored.inputs_digest,
            failed_only=plan.failed_only,
        )
        return Manifest(
            run_id=self.stats.run_id,
            created_at=datetime.now(UTC),
            input_path=old.input_path if old else str(plan.inputs),
            digests=old.digests if old else Digests(input=stored.inputs_digest, overrides=""),
            verifiers=grading.verifiers,
            scoring=grading.scoring,
            reverified=source,
        )

    def _take_output(self, manifest: Manifest) -> None:
        plan, files = self._plan, self.files
        check_apart([plan.inputs, plan.rollouts, self.stored.source], files)
        old = run_to_go_on_with(files, resume=plan.resume, overwrite=plan.overwrite)
        if old is None:
            return
        if old.reverified is None or manifest.reverified is None or not _same(old.reverified, manifest.reverified):
            raise ConflictError(
                f"{files.manifest}: cannot resume, it was made from other rollouts; "
                "replace it (--overwrite) or choose another output"
            )
        self._manifest = manifest.model_copy(update={"run_id": old.run_id, "created_at": old.created_at})
        self.stats.run_id, self.stats.created_at = old.run_id, old.created_at
        for row in read_rollouts(files.rollouts) if files.rollouts.exists() else ():
            reward = float(row[rows.REWARD])
            self._done[row_key(row)] = reward
            self.stats.completed(agent_name(row) or "", reward, earlier=True)
        self._size = whole_lines_size(files.rollouts)

    async def _grade_all(self) -> None:
        async with JsonlWriter(self.files.rollouts) as graded, JsonlWriter(self.files.failures) as failures:
            if whole_lines_size(self.files.rollouts) != self._size:
                raise ConflictError(f"{self.files.rollouts}: another process has written this file meanwhile")
            self._owned = True
            await self._write_manifest("running")
            await asyncio.to_thread(self.stored.write_inputs, self.files.inputs)
            sink = GradingSink(graded, failures, self.stats, self.changes)
            grader = Grader(self._client, self._verifiers, self.stats.run_id, self._plan.timeout_seconds)
            dispatcher = Dispatcher(grader, sink, self._limiter, max_attempts=self._plan.max_attempts)
            async with aclosing(self._assignments(sink)) as assignments:
                await dispatcher.run(assignments)

    async def _assignments(self, sink: GradingSink) -> AsyncGenerator[Assignment, None]:
        for number, stored in enumerate(self.stored):
            if stored.key in self._done:
                self.changes.add(stored.reward, self._done[stored.key])
                if number % 1000 == 0:
                    await asyncio.sleep(0)  # a long settled stretch must not hold up the loop
                continue
            sink.old_rewards[stored.key] = stored.reward
            yield Assignment(stored.key, agent_name(stored.row) or "", stored.row, dumps(stored.row))

    async def _seal(self, state: RunState, error: str = "") -> None:
        self.stats.stop(state, error)
        if self._owned:  # else the manifest on disk is another run's
            await self._write_manifest(state)

    async def _write_manifest(self, state: RunState) -> None:
        if self._manifest is None:
            raise RuntimeError("prepare() comes first")
        status = self.status()
        change = {
            "state": state,
            "error": status.error,
            "counts": Counts(expected=status.expected, completed=status.completed, failed=status.failed),
            "mean_reward": status.mean_reward,
            "agents": status.agents,
        }
        await asyncio.to_thread(self._manifest.model_copy(update=change).write, self.files.manifest)


def _same(one: Source, other: Source) -> bool:
    return (one.rollouts, one.inputs, one.failed_only) == (other.rollouts, other.inputs, other.failed_only)


def _refusal(unsafe: dict[str, Verifying]) -> str:
    told = ", ".join(f"{one.resources} (of {agent}) says {one.mode!r}" for agent, one in sorted(unsafe.items()))
    return (
        f"not every verifier promises that it needs nothing but the stored row: {told}; "
        f"--force grades anyway, into a file whose name begins with {UNSAFE}"
    )
