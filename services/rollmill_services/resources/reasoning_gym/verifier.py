from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConfigError, InputError
from rollmill.grading.serving import LIMIT
from rollmill.grading.text import without_surrogates
from rollmill.grading.workers import WorkerPool
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.reasoning_gym.extract import extracted_answer

_WORKER = Path(__file__).with_name("scoring_worker.py")


class ReasoningGymSettings(ServiceSettings):
    """Settings of the `reasoning_gym` resources service."""

    verify_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest scoring of one answer; beyond it the answer scores 0."""
    verify_workers: int = Field(default=2, ge=1)
    """Most processes that score answers."""
    longest_answer: int = Field(default=50_000, ge=1)
    """Characters; a longer answer scores 0."""


class ReasoningGym(Resources):
    """Tasks of the `reasoning-gym` library, scored by the scorers of their families."""

    Settings = ReasoningGymSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"

    def __init__(self, settings: ReasoningGymSettings | None = None) -> None:
        super().__init__(settings)
        self._limits = settings or ReasoningGymSettings()
        self._workers = WorkerPool(
            _WORKER, count=self._limits.verify_workers, timeout_seconds=self._limits.verify_timeout_seconds
        )

    async def startup(self) -> None:
        """Start the first worker.

        Raises:
            ConfigError: reasoning-gym is not installed.
            NotReadyError: the worker did not start.
        """
        if find_spec("reasoning_gym") is None:
            raise ConfigError(
                "reasoning_gym needs reasoning-gym; install it with: pip install 'rollmill[reasoning-gym]'"
            )
        await self._workers.start()

    async def shutdown(self) -> None:
        """End the workers."""
        await self._workers.stop()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: the metadata is missing, or names no family that is installed.
        """
        await self._scored(Rollout(row), None)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward an answer with the score, 0 to 1, that its family's own scorer gives it.

        Raises:
            InputError: the metadata is missing, or names no family that is installed.
        """
        answer = extracted_answer(without_surrogates(rollout.text))
        told: JsonObject = {"task_name": _family(rollout), "extracted_answer": answer[: self._limits.longest_answer]}
        if not answer.strip() or len(answer) > self._limits.longest_answer:
            return Verdict(0.0, {**told, "extracted_answer": told["extracted_answer"] or None, "score": 0.0})
        reply = await self._scored(rollout, answer)
        if reply is None:
            return Verdict(0.0, {**told, "score": 0.0, "verify_timed_out": True})
        if "failed" in reply:
            told["scorer_error"] = reply["failed"]
        return Verdict(reply["score"], {**told, "score": reply["score"]})

    async def _scored(self, rollout: Rollout, answer: str | None) -> JsonObject | None:
        """Ask a worker; None when it took too long."""
        entry = {name: rollout.field(name) for name in ("question", "answer", "metadata")}
        request: JsonObject = {
            "family": _family(rollout),
            "entry": entry,
            "answer": answer,
            LIMIT: self._limits.verify_timeout_seconds,
        }
        reply = await self._workers.ask(request)
        if reply and "unknown" in reply:
            raise _wrong("/metadata/source_dataset", reply["unknown"])
        return reply


def _family(rollout: Rollout) -> str:
    metadata = rollout.require("metadata")
    family = metadata.get("source_dataset") if isinstance(metadata, dict) else None
    if not isinstance(family, str):
        raise _wrong("/metadata/source_dataset", "must be the name of a task family")
    return family


def _wrong(pointer: str, detail: str) -> InputError:
    return InputError(f"'metadata.source_dataset': {detail}", errors=[{"pointer": pointer, "detail": detail}])
