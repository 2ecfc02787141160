import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import structlog
from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError, OverloadedError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.code_tests.extract import last_program, same_output
from rollmill_services.resources.code_tests.sandbox import Finished, Limits, Sandbox

log = structlog.get_logger()

_STDERR_SHOWN = 1000


class CodeTestsSettings(ServiceSettings):
    """Settings of the `code_tests` resources service."""

    cpu_seconds: int = Field(default=5, ge=1)
    """CPU time of a program for one test."""
    wall_seconds: float = Field(default=15.0, gt=0)
    """Time of a program for one test by the clock: for one that sleeps, and for a machine that is busy."""
    memory_mb: int = Field(default=512, ge=64)
    """Address space of each process of a program."""
    processes: int = Field(default=8, ge=1)
    """Processes and threads of a program at once."""
    file_mb: int = Field(default=16, ge=1)
    """What a program may write to its `/tmp`."""
    output_mb: int = Field(default=4, ge=1)
    """What a program may print for one test."""
    most_tests: int = Field(default=1000, ge=1)
    """Tests that a row may have."""
    sandboxes: int = Field(default=2, ge=1, le=1000)
    """Programs that run at once."""
    waiting: int = Field(default=256, ge=0)
    """Verdicts that may wait for a sandbox; beyond, callers are asked to come again."""
    python: str = ""
    """Interpreter of the programs, by default that of the service without its packages."""
    allow_unsandboxed: bool = False
    """Run programs without walls: they can read and send whatever the service can."""

    def limits(self) -> Limits:
        """Return the limits of one program."""
        return Limits(
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            memory_mb=self.memory_mb,
            processes=self.processes,
            file_mb=self.file_mb,
            output_bytes=self.output_mb * 1024 * 1024,
        )


class CodeTests(Resources):
    """Programming tasks: runs the answer's Python program against hidden tests, in a sandbox."""

    Settings = CodeTestsSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"
    answer_field: ClassVar[str | None] = None  # two programs that do the same are seldom the same text

    def __init__(self, settings: CodeTestsSettings | None = None) -> None:
        super().__init__(settings)
        self._limits = settings or CodeTestsSettings()
        self._sandbox = Sandbox(
            self._limits.limits(), python=self._limits.python, isolated=not self._limits.allow_unsandboxed
        )
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in range(self._limits.sandboxes):
            self._free.put_nowait(slot)
        self._waiting = 0

    async def startup(self) -> None:
        """Check that the sandbox holds.

        Raises:
            ConfigError: there is no isolation here, and none was waived.
        """
        if self._limits.allow_unsandboxed:
            log.warning("sandbox_waived", detail="graded programs can read and send whatever this service can")
        await self._sandbox.check()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: the row's tests are missing or malformed.
        """
        self._tests(Rollout(row))

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the last fenced program of the answer passes every test, else 0.0.

        It stops at the first test that fails; `result` has a status for each test that was run.

        Raises:
            InputError: the row's tests are missing or malformed.
            OverloadedError: too many verdicts wait for a sandbox.
        """
        tests = self._tests(rollout)
        program = last_program(rollout.text)
        if program is None:
            return Verdict(0.0, {"extracted_model_code": None, "tests_passed": 0, "tests_total": len(tests)})
        async with self._slot() as slot:
            statuses, failed = await self._run_all(program, tests, slot)
        details: JsonObject = {
            "extracted_model_code": program,
            "result": list(statuses),
            "tests_passed": statuses.count("passed"),
            "tests_total": len(tests),
        }
        if failed is not None:
            details["failed_test"] = failed
        return Verdict(float(failed is None), details)

    async def _run_all(
        self, program: str, tests: list[tuple[str, str]], slot: int
    ) -> tuple[list[str], JsonObject | None]:
        statuses: list[str] = []
        for number, (given, expected) in enumerate(tests):
            finished = await self._sandbox.run(program, given.encode(errors="replace"), slot=slot)
            statuses.append(_status(finished, expected))
            if statuses[-1] != "passed":
                return statuses, _failed(number, statuses[-1], finished)
        return statuses, None

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[int]:
        if self._free.empty() and self._waiting >= self._limits.waiting:
            raise OverloadedError(f"{self._waiting} verdicts wait for a sandbox", retry_after=2.0)
        self._waiting += 1
        try:
            slot = await self._free.get()
        finally:
            self._waiting -= 1
        try:
            yield slot
        finally:
            self._free.put_nowait(slot)

    def _tests(self, rollout: Rollout) -> list[tuple[str, str]]:
        tests = rollout.require("unit_tests")
        given = tests if isinstance(tests, dict) else {}
        inputs, outputs = _texts(given, "inputs"), _texts(given, "outputs")
        if len(inputs) != len(outputs):
            raise _wrong("outputs", f"there are {len(outputs)} of them, and {len(inputs)} inputs")
        if len(inputs) > self._limits.most_tests:
            raise _wrong("inputs", f"at most {self._limits.most_tests} tests, got {len(inputs)}")
        return list(zip(inputs, outputs, strict=True))


def _status(finished: Finished, expected: str) -> str:
    if finished.too_much_output:
        return "output_limit"
    if finished.out_of_time:
        return "time_limit"
    if finished.code:
        return "memory_limit" if b"MemoryError" in finished.stderr[-200:] else "runtime_error"
    printed = finished.stdout.decode(errors="replace")
    return "passed" if same_output(printed, expected) else "wrong_answer"


def _failed(number: int, status: str, finished: Finished) -> JsonObject:
    """Say which test failed and how, without its input or expected output: they stay hidden."""
    stderr = finished.stderr.decode(errors="replace")[-_STDERR_SHOWN:]
    return {"index": number, "status": status, "exit_code": finished.code, "stderr": stderr}


def _texts(tests: JsonObject, name: str) -> list[str]:
    values: JsonValue = tests.get(name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise _wrong(name, "must be a list of at least one text")
    return [str(value) for value in values]


def _wrong(name: str, detail: str) -> InputError:
    pointer = f"/verifier_metadata/unit_tests/{name}"
    return InputError(f"'unit_tests.{name}': {detail}", errors=[{"pointer": pointer, "detail": detail}])
