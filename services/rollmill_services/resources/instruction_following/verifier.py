import asyncio
from importlib.util import find_spec
from typing import ClassVar, Literal

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import ConfigError, InputError
from rollmill.grading.text import without_surrogates
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill_services.resources.instruction_following.given import Check, Given
from rollmill_services.resources.instruction_following.instructions import INSTRUCTIONS

_LONG = 20_000  # characters; beyond, checks would hold up the other sessions
_MODES = ("binary", "fraction")


class InstructionFollowingSettings(ServiceSettings):
    """Settings of the `instruction_following` resources service."""

    grading_mode: Literal["binary", "fraction"] = "binary"
    """How rows are graded that do not say: all instructions or nothing, or the share that was followed."""
    longest_answer: int = Field(default=200_000, ge=1)
    """Characters; a longer answer follows nothing."""


class InstructionFollowing(Resources):
    """Instructions whose following a program can check, such as lengths, keywords, marks and languages."""

    Settings = InstructionFollowingSettings
    reverify_mode: ClassVar[ReverifyMode] = "stateless"
    answer_field: ClassVar[str | None] = None  # answers are texts of which no two are the same

    def __init__(self, settings: InstructionFollowingSettings | None = None) -> None:
        super().__init__(settings)
        settings = settings or InstructionFollowingSettings()
        self._mode = settings.grading_mode
        self._longest = settings.longest_answer

    async def startup(self) -> None:
        """Check that the library is there.

        Raises:
            ConfigError: langdetect is not installed.
        """
        if find_spec("langdetect") is None:
            raise ConfigError(
                "instruction_following needs langdetect; install it with: pip install 'rollmill[instruction-following]'"
            )

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: an instruction is unknown, or lacks what it needs.
        """
        rollout = Rollout(row)
        self._grading_mode(rollout)
        _checks(rollout)

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when all instructions were followed, else 0.0; or the share of them, as `grading_mode` says.

        An empty answer, or one that is too long, follows none.

        Raises:
            InputError: an instruction is unknown, or lacks what it needs.
        """
        mode, checks = self._grading_mode(rollout), _checks(rollout)
        text = without_surrogates(rollout.text) if len(rollout.text) <= self._longest else ""
        followed = _followed(checks, text) if len(text) < _LONG else await asyncio.to_thread(_followed, checks, text)
        share = sum(followed) / len(followed)
        return Verdict(
            share if mode == "fraction" else float(all(followed)),
            {"follow_instruction_list": list(followed), "follow_all_instructions": all(followed)},
        )

    def _grading_mode(self, rollout: Rollout) -> str:
        mode = rollout.field("grading_mode") or self._mode
        if mode not in _MODES:
            raise _wrong("/grading_mode", f"must be {' or '.join(_MODES)}")
        return str(mode)


def _followed(checks: list[Check], text: str) -> list[bool]:
    return [bool(text.strip()) and check(text) for check in checks]


def _checks(rollout: Rollout) -> list[Check]:
    ids, kwargs = rollout.require("instruction_id_list"), rollout.field("kwargs")
    if not isinstance(ids, list) or not ids:
        raise _wrong("/instruction_id_list", "must be a list of at least one id")
    given = [None] * len(ids) if kwargs is None else kwargs
    if not isinstance(given, list) or len(given) != len(ids):
        raise _wrong("/kwargs", "must be a list with one entry for each id; an entry may be null")
    return [_check(nth, name, values) for nth, (name, values) in enumerate(zip(ids, given, strict=True))]


def _check(nth: int, name: JsonValue, values: JsonValue) -> Check:
    instruction = INSTRUCTIONS.get(name) if isinstance(name, str) else None
    if instruction is None:
        raise _wrong(f"/instruction_id_list/{nth}", f"{name!r} is not a known instruction")
    if values is not None and not isinstance(values, dict):
        raise _wrong(f"/kwargs/{nth}", "must be an object or null")
    return instruction(Given(values or {}, f"/kwargs/{nth}"))


def _wrong(pointer: str, detail: str) -> InputError:
    return InputError(f"{pointer.removeprefix('/')}: {detail}", errors=[{"pointer": pointer, "detail": detail}])
