from typing import Annotated, ClassVar

from pydantic import Field

from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.contracts.rows import Row
from rollmill.contracts.services import ReverifyMode
from rollmill.errors import InputError
from rollmill.server.resources import Resources
from rollmill.server.sessions import Session
from rollmill.server.tools import tool

_EXTRACT = "extract_synonym_values"
_LONGEST_SYNONYM = 10_000


class MultiStepTools(Resources):
    """Looking things up one by one, then handing in all of them: several tool calls that must be right together."""

    reverify_mode: ClassVar[ReverifyMode] = "stateless"
    answer_field: ClassVar[str | None] = "parsed_synonym_values"

    async def seed_session(self, session: Session, row: Row) -> None:
        """Refuse a task that could not be graded, before any model is asked.

        Raises:
            InputError: a field that the verdict needs is missing or wrong.
        """
        _expected_values(Rollout(row))

    @tool
    async def get_synonym_value(
        self,
        synonym: Annotated[str, Field(description="The synonym to get the value for.", max_length=_LONGEST_SYNONYM)],
    ) -> JsonObject:
        """Get the value of a synonym."""
        return {"synonym_value": synonym_value(synonym)}

    @tool
    async def extract_synonym_values(
        self,
        synonym_values: Annotated[
            list[int], Field(description="The values of the synonyms that fit the user's query.")
        ],
    ) -> JsonObject:
        """Hand in the values that were found, in the order of the available synonyms; the last call counts."""
        return {"success": True}

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the last list that was handed in is exactly `expected_synonym_values`.

        Raises:
            InputError: a field that the verdict needs is missing or wrong.
        """
        expected = _expected_values(rollout)
        given = _handed_in(rollout.response.get("output"))
        found = given or []
        minefield = (rollout.field("minefield_label_value"), _word_value(rollout.field("minefield_label")))
        details: JsonObject = {
            "parsed_synonym_values": given,
            "accuracy": found == expected,
            "set_overlap": len(set(found) & set(expected)) / len(set(expected)),
            "original_term_minefield_hit": any(value in minefield for value in found),
            "order_instruction_following_failure": found != expected and sorted(found) == sorted(expected),
        }
        return Verdict(float(found == expected), details)


def synonym_value(synonym: str) -> int:
    """Return the sum of the code points: easy to compute for the verifier, not for a model."""
    return sum(map(ord, synonym))


def _word_value(word: JsonValue) -> int | None:
    return synonym_value(word) if isinstance(word, str) else None


def _handed_in(output: JsonValue) -> list[int] | None:
    """Return the list of the last call that hands in; None when there is no such call, or it holds something else."""
    calls = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    for item in reversed(calls):
        if item.get("type") == "function_call" and item.get("name") == _EXTRACT:
            return _integers(_arguments(item.get("arguments")).get("synonym_values"))
    return None


def _arguments(text: JsonValue) -> JsonObject:
    try:
        arguments = loads(text) if isinstance(text, str) else None
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _integers(values: JsonValue) -> list[int] | None:
    if not isinstance(values, list):
        return None
    whole = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
    return whole if len(whole) == len(values) else None


def _expected_values(rollout: Rollout) -> list[int]:
    expected = _integers(rollout.require("expected_synonym_values"))
    if not expected:
        fault = {"pointer": "/expected_synonym_values", "detail": "must be a list of at least one integer"}
        raise InputError("'expected_synonym_values' must be a list of at least one integer", errors=[fault])
    return expected
