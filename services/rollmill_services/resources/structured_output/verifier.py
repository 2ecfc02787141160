from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConfigError, InputError
from rollmill.grading.serving import LIMIT
from rollmill.grading.text import without_surrogates
from rollmill.grading.workers import WorkerPool
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.structured_output.reading import LANGUAGES

_WORKER = Path(__file__).with_name("structure_worker.py")
_LIBRARIES = ("jsonschema", "defusedxml")
_TOOL_CALL = "tool_call"


class StructuredOutputSettings(ServiceSettings):
    """Settings of the `structured_output` resources service."""

    verify_timeout_seconds: float = Field(default=10.0, gt=0)
    """Longest validation of one answer; beyond it the answer counts as wrong."""
    verify_workers: int = Field(default=2, ge=1)
    """Most processes that validate answers."""
    longest_answer: int = Field(default=1_000_000, ge=1)
    """Characters; a longer answer is wrong."""
    allow_fenced: bool = False
    """Whether an answer may stand in one fenced block; a row's own `allow_fenced` counts first."""


class StructuredOutput(Resources):
    """Answers in a language for data, which must parse and fit a schema with every property there and none added."""

    Settings = StructuredOutputSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"
    answer_field: ClassVar[str | None] = "parsed_output"

    def __init__(self, settings: StructuredOutputSettings | None = None) -> None:
        super().__init__(settings)
        self._limits = settings or StructuredOutputSettings()
        self._workers = WorkerPool(
            _WORKER, count=self._limits.verify_workers, timeout_seconds=self._limits.verify_timeout_seconds
        )

    async def startup(self) -> None:
        """Start the first worker.

        Raises:
            ConfigError: a library is not installed.
            NotReadyError: the worker did not start.
        """
        if any(find_spec(name) is None for name in _LIBRARIES):
            raise ConfigError(
                "structured_output needs jsonschema and defusedxml; install them with: "
                "pip install 'rollmill[structured-output]'"
            )
        await self._workers.start()

    async def shutdown(self) -> None:
        """End the workers."""
        await self._workers.stop()

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: a field that the verdict needs is missing or wrong.
        """
        await self._validated(Rollout(row), None)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the answer parses as `schema_type` and fits `schema_str`, else 0.0.

        Raises:
            InputError: a field that the verdict needs is missing or wrong.
        """
        answer = _tool_answer(rollout) if _mode(rollout) == _TOOL_CALL else without_surrogates(rollout.text)
        if not answer.strip():
            return _refused("missing", "there is no answer")
        if len(answer) > self._limits.longest_answer:
            return _refused("parse", f"the answer has more than {self._limits.longest_answer} characters")
        reply = await self._validated(rollout, answer)
        if reply is None:
            return _refused("timeout", "reading and validating took too long")
        if "error_type" in reply:
            return _refused(reply["error_type"], reply["error_message"])
        return Verdict(1.0, {"parsed_output": reply["parsed"], "error_type": None})

    async def _validated(self, rollout: Rollout, answer: str | None) -> JsonObject | None:
        """Ask a worker; None when it took too long."""
        fenced = rollout.field("allow_fenced")
        called = _mode(rollout) == _TOOL_CALL
        request: JsonObject = {
            "schema": _schema(rollout),
            "language": "json" if called else _language(rollout),
            "answer": answer,
            "key": rollout.field("tool_payload_key") if called else None,
            "fenced": not called and (self._limits.allow_fenced if fenced is None else bool(fenced)),
            LIMIT: self._limits.verify_timeout_seconds,
        }
        reply = await self._workers.ask(request)
        if reply and reply.get("error_type") == "schema_wrong":
            raise _wrong("schema_str", f"not a JSON schema: {reply['error_message']}")
        return reply


def _refused(kind: str, message: str) -> Verdict:
    return Verdict(0.0, {"parsed_output": None, "error_type": kind, "error_message": message})


def _tool_answer(rollout: Rollout) -> str:
    """Return the arguments of the last call of the row's tool; empty when there is no such call."""
    name, output = rollout.require("tool_name"), rollout.response.get("output")
    calls = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    made = [call for call in calls if call.get("type") == "function_call" and call.get("name") == name]
    arguments = made[-1].get("arguments") if made else None
    return without_surrogates(arguments) if isinstance(arguments, str) else ""


def _schema(rollout: Rollout) -> JsonValue:
    given = rollout.require("schema_str")
    try:
        schema = loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise _wrong("schema_str", f"not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise _wrong("schema_str", "must be a JSON schema, an object")
    return schema


def _language(rollout: Rollout) -> str:
    language = rollout.field("schema_type") or "json"
    if language not in LANGUAGES:
        raise _wrong("schema_type", f"must be one of {', '.join(LANGUAGES)}")
    return str(language)


def _mode(rollout: Rollout) -> str:
    mode = rollout.field("response_mode") or "text"
    if mode not in ("text", _TOOL_CALL):
        raise _wrong("response_mode", f"must be text or {_TOOL_CALL}")
    if mode == _TOOL_CALL:
        rollout.require("tool_name")
    key = rollout.field("tool_payload_key")
    if key is not None and not isinstance(key, str):
        raise _wrong("tool_payload_key", "must be the name of an argument")
    return str(mode)


def _wrong(name: str, detail: str) -> InputError:
    return InputError(f"{name!r}: {detail}", errors=[{"pointer": f"/{name}", "detail": detail}])
