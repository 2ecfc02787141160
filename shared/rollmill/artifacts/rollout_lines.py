"""Takes the columns out of lines of a rollouts file: the fast way where lines are alike, else from whole rows."""

from collections.abc import Sequence
from contextlib import suppress

from rollmill.artifacts.chunks import Chunk, Coded, Field, answer_text, are_exact_ints, coded, floats, ints
from rollmill.artifacts.output_items import steps
from rollmill.artifacts.rollout_rows import AgentNames, AnswerFields, are_indices, chunk_of_rows
from rollmill.artifacts.rollout_shape import RolloutShape, Shaped
from rollmill.contracts.json import JsonValue, loads
from rollmill.metrics.numeric import is_number, numeric_fields


class RolloutLines:
    """Turns lines into chunks, and remembers what it learned about them.

    Args:
        answers: where the answers are.
    """

    def __init__(self, answers: AnswerFields) -> None:
        self._answers = answers
        self._shape = RolloutShape(answers.names())
        self._names = AgentNames()

    def chunk(self, lines: Sequence[bytes], offsets: Sequence[int]) -> Chunk:
        """Return the columns of lines, none of them blank, that begin at the offsets. Its `end` is not set."""
        shaped = self._shape.decode(lines)
        if shaped is not None and are_indices(shaped.tasks) and are_indices(shaped.rollouts):
            with suppress(OverflowError):  # an int beyond the range of doubles, which is no valid row
                return self._chunk(shaped, lines, offsets)
        return chunk_of_rows(lines, offsets, self._answers)

    def _chunk(self, shaped: Shaped, lines: Sequence[bytes], offsets: Sequence[int]) -> Chunk:
        agents = list(map(self._names.of, shaped.agents))
        found = list(map(steps, shaped.outputs))
        return Chunk(
            count=len(lines),
            tasks=ints(shaped.tasks),
            rollouts=ints(shaped.rollouts),
            offsets=ints(offsets),
            agents=coded(agents),
            answers=self._coded_answers(shaped, agents),
            truncated=bytes(memoryview(details)[0] != ord("n") for details in shaped.incomplete),
            turns=floats([turns for turns, _ in found]),
            tool_errors=floats([errors for _, errors in found]),
            seconds=floats(shaped.seconds),
            fields=_fields(shaped, lines),
        )

    def _coded_answers(self, shaped: Shaped, agents: Sequence[str | None]) -> Coded:
        of_agent = {agent: shaped.answers.get(self._answers.of(agent) or "") for agent in set(agents)}
        columns = [of_agent[agent] for agent in agents]
        return coded(None if column is None else answer_text(column[i]) for i, column in enumerate(columns))


def _fields(shaped: Shaped, lines: Sequence[bytes]) -> list[Field]:
    """Return the fields in the order in which the lines have them; those that no line has are left out."""
    beginnings = {_first_number(column) for column in shaped.numbers.values()}
    rows = [loads(lines[i]) for i in sorted(i for i in beginnings if i is not None)]
    names = dict.fromkeys(name for row in rows for name in numeric_fields(row))
    columns = {name: shaped.numbers[name] for name in names}
    return [
        Field(name, floats(column), are_exact_ints(column), name in shaped.usage) for name, column in columns.items()
    ]


def _first_number(column: Sequence[JsonValue]) -> int | None:
    return next((i for i, value in enumerate(column) if is_number(value)), None)
