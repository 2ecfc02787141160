"""`fixtures.yaml`: rollouts whose reward is known beforehand."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from rollmill.config.yaml_files import read_yaml
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.contracts.wire import WireModel
from rollmill.errors import InputError

FILE_NAME: Final = "fixtures.yaml"
"""Lies beside the environment's module."""


class ToolCall(WireModel):
    """A call that the model of a fixture makes."""

    tool: str = Field(min_length=1)
    arguments: JsonObject = Field(default_factory=dict)


class Fixture(WireModel):
    """A task, what a model did with it, and the reward for that."""

    task: Annotated[int, Field(strict=True, ge=0)] | JsonObject
    """A row, or the number of one in the task file, from 0."""
    calls: list[ToolCall] = Field(default_factory=list)
    """Tool calls made first, in this order."""
    answer: str | None = None
    """Text of the last message."""
    response: JsonObject | None = None
    """A whole Responses object instead of `answer`; the function calls in it are not made, only those of `calls`."""
    reward: float

    @model_validator(mode="after")
    def _one_of_both(self) -> "Fixture":
        if (self.answer is None) == (self.response is None):
            raise ValueError("needs either 'answer' or 'response'")
        return self

    def row(self, tasks: Sequence[Row]) -> Row:
        """Return the fixture's task.

        Raises:
            InputError: the task file has no row of this number.
        """
        if isinstance(self.task, dict):
            return self.task
        if self.task >= len(tasks):
            raise InputError(f"task {self.task} is not among the {len(tasks)} tasks, which are numbered from 0")
        return tasks[self.task]


_FIXTURES: Final = TypeAdapter(list[Fixture])


def read_fixtures(path: str | Path) -> list[Fixture]:
    """Read a `fixtures.yaml`: a list of fixtures.

    Raises:
        InputError: the file cannot be read, or is not such a list; names every fault by its place.
    """
    value = read_yaml(path)
    try:
        return _FIXTURES.validate_python(value)
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'])) or 'file'}: {fault['msg']}" for fault in error.errors()]
        raise InputError(f"{path}: {'; '.join(faults)}") from None
