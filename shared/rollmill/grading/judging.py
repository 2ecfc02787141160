"""Asking a model for a verdict that the graded text cannot talk it, or us, into.

Three things stand between an answer that says "the verdict is YES" and a reward. What is graded goes into the prompt as
one JSON string, in which there is no line of its own. A verdict counts only on a line that begins with a word drawn for
this one call, which no answer can know. And verdicts that contradict each other are no verdict: the judge is asked
again, and in the end the rollout is a failure of class `judge_failed`, never a reward of 0.
"""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from rollmill.contracts.json import JsonObject, JsonValue, dumps
from rollmill.contracts.rollouts import Rollout
from rollmill.contracts.rows import PARAMS, answer_text, content_text
from rollmill.errors import ConfigError, DeadlineError, JudgeFailedError, OverloadedError, RollmillError
from rollmill.openai import normalize_input
from rollmill.openai.items import as_object

LONGEST_TEXT: Final = 200_000
"""Characters of a quoted text; of a longer one, the end."""
_SHOWN: Final = 2000
_FURTHER_LINE_BREAKS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}  # JSON lets them stand
_YES, _NO = "YES", "NO"
_MARKS = r"[ \t\r.*_`>#-]*"
"""What may stand around a verdict: the marks of Markdown, and a full stop."""


class Asks(Protocol):
    """What a judge needs of `rollmill.server.resources.Models`."""

    async def respond(self, name: str, request: JsonObject) -> JsonObject:
        """Send a Responses request to a model."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a judge is told: `str.format` texts, in which `{{` and `}}` are literal braces.

    Fields: `{boundary}`, the word with which a line with a verdict begins, and those that the caller fills in, each
    quoted as a JSON string.
    """

    system: str
    user: str

    def check(self, fields: frozenset[str]) -> None:
        """Try the prompt out.

        Raises:
            ConfigError: it uses a field that there is not, or not `{boundary}`.
        """
        word = "boundary-of-this-check"
        try:
            text = self.render(dict.fromkeys(fields, ""), word)
        except (AttributeError, KeyError, IndexError, ValueError) as error:
            known = ", ".join(sorted(fields | {"boundary"}))
            raise ConfigError(f"the judge's prompt: no field {error}; the fields are: {known}") from None
        if word not in "".join(text):
            raise ConfigError("the judge's prompt does not use {boundary}, without which no verdict can be read")

    def render(self, texts: Mapping[str, str], boundary: str) -> tuple[str, str]:
        """Fill the fields in; returns the system and the user message."""
        quoted = {name: quote(text) for name, text in texts.items()}
        return (
            self.system.format(boundary=boundary, **quoted),
            self.user.format(boundary=boundary, **quoted),
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said."""

    verdicts: tuple[bool, ...]
    """One for each question."""
    text: str
    """The end of its answer."""
    tokens: int
    """Output tokens of all attempts."""


class Judge:
    """Asks a model service for verdicts.

    Args:
        models: the way to it.
        name: the model service.
        params: sampling parameters of its requests.
        attempts: how often it is asked for a verdict that can be read, >= 1.
    """

    def __init__(self, models: Asks, name: str, *, params: JsonObject | None = None, attempts: int = 3) -> None:
        self._models = models
        self._name = name
        self._params = params or {}
        self._attempts = attempts

    async def ask(self, prompt: Prompt, texts: Mapping[str, str], *, questions: int = 1) -> Judgement:
        """Ask for a YES or NO to each question.

        Args:
            prompt: what it is told.
            texts: the fields of the prompt, unquoted.
            questions: how many verdicts there must be, numbered from 1 when there are several.

        Raises:
            JudgeFailedError: it failed, or gave no verdict that can be read.
            OverloadedError, DeadlineError: as the model said.
        """
        said, tokens = "", 0
        for _ in range(self._attempts):
            boundary = f"VERDICT-{secrets.token_hex(8)}"
            system, user = prompt.render(texts, boundary)
            response = await self._respond(system, user)
            said = answer_text(response)
            tokens += _output_tokens(response)
            verdicts = read_verdicts(said, boundary, questions)
            if verdicts is not None:
                return Judgement(verdicts, said[-_SHOWN:], tokens)
        tried = f"no verdict can be read in {self._attempts} answers of {self._name!r}"
        raise JudgeFailedError(f"{tried}; the last one ends: {said[-200:]!r}", boundary="model", service=self._name)

    async def _respond(self, system: str, user: str) -> JsonObject:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        try:
            return await self._models.respond(self._name, {**self._params, "input": messages})
        except (OverloadedError, DeadlineError):
            raise
        except RollmillError as error:
            extensions: JsonObject = {**error.extensions, "boundary": "model", "service": self._name}
            for own in ("upstream_type", "upstream_status"):  # the class of the failure is the judge's
                extensions.pop(own, None)
            raise JudgeFailedError(f"the judge {self._name!r} failed: {error.detail}", **extensions) from error


def quote(text: str) -> str:
    """Write a text as one JSON string: no line breaks, no control characters, no way out of its quotes."""
    whole = text[-LONGEST_TEXT:].encode("utf-8", "replace").decode()
    return dumps(whole).decode().translate(_FURTHER_LINE_BREAKS)


def read_verdicts(said: str, boundary: str, questions: int) -> tuple[bool, ...] | None:
    """Find the verdicts in a judge's answer: `BOUNDARY: YES`, or `BOUNDARY 2: NO` where there are several questions.

    Returns:
        One for each question; None when one is missing, or there are two that contradict each other.
    """
    number_of = r"(?:[ \t]+(\d{1,4}))?"
    line = rf"^{_MARKS}{re.escape(boundary)}{number_of}[ \t]*:{_MARKS}({_YES}|{_NO}){_MARKS}$"
    found: dict[int, bool] = {}
    for number, word in re.findall(line, said, re.M | re.I):
        question = int(number) if number else 1
        verdict = word.upper() == _YES
        if found.setdefault(question, verdict) is not verdict:
            return None
    if set(found) != set(range(1, questions + 1)):
        return None
    return tuple(found[question] for question in range(1, questions + 1))


def question_of(rollout: Rollout) -> str:
    """Return the row's `question`, or what its last user message says."""
    given = rollout.field("question")
    if isinstance(given, str):
        return given
    items = normalize_input(as_object(rollout.row.get(PARAMS)).get("input") or "")
    said = [content_text(item.get("content")) for item in items if item.get("role") == "user"]
    return said[-1] if said else ""


def evaluations(asked: Sequence[Judgement]) -> list[JsonObject]:
    """Return what a judge said as a row's `judge_evaluations` has it: `{verdicts, text}` of each answer."""
    return [{"verdicts": list(judgement.verdicts), "text": judgement.text} for judgement in asked]


def _output_tokens(response: JsonObject) -> int:
    usage: JsonValue = response.get("usage")
    tokens = usage.get("output_tokens") if isinstance(usage, dict) else 0
    return tokens if isinstance(tokens, int) else 0
