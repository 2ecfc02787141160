from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


class Rollout:
    """A finished rollout, as a verifier sees it: the row with its `response`."""

    def __init__(self, row: Row) -> None:
        self.row = row

    @property
    def response(self) -> JsonObject:
        """The Responses object that the agent ended with; empty when the row has none."""
        response = self.row.get(rows.RESPONSE)
        return response if isinstance(response, dict) else {}

    @cached_property
    def text(self) -> str:
        """The answer text: all assistant messages, joined by newlines."""
        return rows.answer_text(self.response)

    def field(self, name: str, default: JsonValue = None) -> JsonValue:
        """Read a field from the row, or else from its `verifier_metadata`."""
        return rows.field(self.row, name, default)

    def require(self, name: str) -> JsonValue:
        """Read a field that must be there.

        Raises:
            InputError: the field is missing or null; the message names it.
        """
        value = self.field(name)
        if value is None:
            fault = {"pointer": f"/{name}", "detail": "required by this verifier"}
            raise InputError(f"the row has no {name!r}, which this verifier needs", errors=[fault])
        return value


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says about a rollout."""

    reward: float
    """Training signal; must be finite."""
    details: Mapping[str, JsonValue] = field(default_factory=dict)
    """Further top-level fields of the verified row, such as `extracted_answer`; numbers become metrics."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Optional parts of the reward, written as `reward_components`."""

    def merged_into(self, row: Row) -> Row:
        """Return the verified row: the row, the details and the reward."""
        verified = {**row, **self.details, rows.REWARD: float(self.reward)}
        if self.components:
            verified[rows.COMPONENTS] = dict(self.components)
        return verified
