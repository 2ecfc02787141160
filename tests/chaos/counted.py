"""A verifier that writes down each of its executions, and marks its verdict with it."""

import asyncio
import os
from pathlib import Path

from rollmill import Resources, Rollout, Session, Verdict
from rollmill.config.settings import ServiceSettings
from rollmill.contracts import rows
from rollmill.contracts.json import dumps
from rollmill.ids import new_id
from rollmill_services.resources.mcqa.verifier import Mcqa

VERDICT = "verdict_id"


class CountedSettings(ServiceSettings):
    executions: Path
    """The file that every replica appends to, one line for each verdict that was reached."""
    seconds: float = 0.01
    """How long a verdict takes, so that repeats of a call have something to join."""


class Counted(Resources):
    """Multiple choice, counted."""

    Settings = CountedSettings
    reverify_mode = "stateless"

    def __init__(self, settings: CountedSettings) -> None:
        super().__init__(settings)
        self._path = settings.executions
        self._seconds = settings.seconds
        self._mcqa = Mcqa()

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        await asyncio.sleep(self._seconds)
        verdict = await self._mcqa.verify(rollout, session)
        mark = new_id()
        with self._path.open("ab", buffering=0) as file:  # one write is one whole line, whoever else writes
            file.write(dumps(self._execution(rollout.row, mark)) + b"\n")
        return Verdict(verdict.reward, {**verdict.details, VERDICT: mark})

    @staticmethod
    def _execution(row: rows.Row, mark: str) -> dict[str, str | int]:
        return {
            "verdict": mark,
            "task": row[rows.TASK_INDEX],
            "rollout": row[rows.ROLLOUT_INDEX],
            "attempt": row.get(rows.ATTEMPT_INDEX) or 0,
            "process": os.getpid(),
        }
