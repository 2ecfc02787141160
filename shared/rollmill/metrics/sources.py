"""What the classic profile is made of, wherever it comes from."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from rollmill.contracts.rows import Row

if TYPE_CHECKING:
    from pandas import DataFrame


class Rollouts(Protocol):
    """Finished rollouts, of which only keys, agents and numbers are known."""

    def __len__(self) -> int:
        """Return the number of rollouts."""

    @property
    def fields(self) -> Sequence[str]:
        """Names of the numeric fields, in order of first appearance."""

    @property
    def usage_fields(self) -> Sequence[str]:
        """Those of the fields that `response.usage` gave."""

    @property
    def integer_fields(self) -> Collection[str]:
        """Those of the fields whose every value was an int or a boolean that a double holds exactly."""

    def frame(self) -> "DataFrame":
        """Return a frame: the two indices, the agent's name as `agent_ref`, and a column per field; NaN is missing."""


class Inputs(Protocol):
    """Materialized input rows."""

    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    def expected(self) -> dict[int, int]:
        """How many rollouts each task is to have."""

    def frame(self) -> "DataFrame":
        """Return the keys and agents of all rows, in their order."""

    def samples(self) -> AbstractContextManager[Callable[[int], Row]]:
        """Give a function that returns the first row of a task, without its two indices."""
