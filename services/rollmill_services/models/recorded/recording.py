"""A recording, cut into steps.

The output of a recorded rollout alternates between what the model said and what its surroundings answered:

    function_call function_call | function_call_output function_call_output | message
    '-------- step 0 ---------' '----------- surroundings ----------------' '- step 1 -'

A request in the middle of a rollout holds the task's input and then the same alternation. Only the model's items
have to be those of the recording; the outputs of the tools may differ.
"""

from collections.abc import Callable
from itertools import groupby

from rollmill.contracts.json import JsonObject, JsonValue, canonical, loads
from rollmill.contracts.rows import PARAMS, RESPONSE, Row
from rollmill.openai import normalize_input

Step = list[JsonObject]
"""The items that one call of the model gave."""


class Recording:
    """One recorded rollout.

    Args:
        task_input: the `input` of the recorded request.
        response: the recorded Responses object, its `output` holding every item of the loop.

    Raises:
        InputError: the input or the output is not a list of items.
    """

    def __init__(self, task_input: JsonValue, response: JsonObject) -> None:
        output: list[JsonObject] = response["output"]
        self.input = normalize_input(task_input)
        self._normalized = model_steps(normalize_input(output)) or [[]]
        self.steps: list[Step] = model_steps(output) or [[]]
        self._marks = frozenset(mark for step in (*self.steps, *self._normalized) for mark in map(_mark, step))
        self._response = {key: value for key, value in response.items() if key != "output"}

    def follows(self, served: list[Step]) -> bool:
        """Say whether these normalised steps, at least one, are the first ones of this recording, and not all."""
        if not 0 < len(served) < len(self.steps):
            return False
        own = self._normalized[: len(served)]
        return any(list(map(reading, served)) == list(map(reading, own)) for reading in (_call_ids, _call_contents))

    def likeness(self, served: list[JsonObject]) -> int:
        """Count the items, as they stand in a request, that are equal or have the same id in this recording."""
        return len(self._marks.intersection([*map(_mark, served), *map(_mark, normalize_input(served))]))

    def response_of(self, index: int) -> JsonObject:
        """Return the recorded Responses object without its output.

        Usage and the reason of an incomplete answer were recorded once for the whole loop: the last step has them.
        """
        if index == len(self.steps) - 1:
            return self._response
        return {**self._response, "usage": None, "status": "completed", "incomplete_details": None}


def recording_of(row: Row) -> Recording:
    """Read the recording in a row of a rollouts file.

    Raises:
        ValueError: the row has no input or no output; the message names the field.
        InputError: the input or the output is not a list of items.
    """
    params, response = row.get(PARAMS), row.get(RESPONSE)
    task_input = params.get("input") if isinstance(params, dict) else None
    if task_input is None:
        raise ValueError(f"the row has no {PARAMS}.input")
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise ValueError(f"the row has no {RESPONSE}.output")
    return Recording(task_input, response)


def model_steps(items: list[JsonObject]) -> list[Step]:
    """Return the runs of items that the model made, without what stands between them."""
    return [list(run) for is_models, run in groupby(items, key=_is_models) if is_models]


def _is_models(item: JsonObject) -> bool:
    kind = item.get("type") or "message"
    if kind == "message":
        return str(item.get("role") or "assistant") == "assistant"
    return not str(kind).endswith("_output")


def _call_ids(step: Step) -> list[JsonValue]:
    return _reading(step, lambda call: call.get("call_id"))


def _call_contents(step: Step) -> list[JsonValue]:
    """Return what identifies a step for an agent that gives the calls ids of its own."""
    return _reading(step, lambda call: (call.get("name"), _canonical_arguments(call.get("arguments"))))


def _reading(step: Step, identity: Callable[[JsonObject], JsonValue]) -> list[JsonValue]:
    """Return the calls of a step; of a step without calls its messages. Agents may leave out the rest."""
    calls = [identity(item) for item in step if item["type"] == "function_call"]
    return calls or [canonical(item.get("content")) for item in step if item["type"] == "message"]


def _canonical_arguments(arguments: JsonValue) -> bytes:
    try:
        return canonical(loads(arguments))
    except (ValueError, TypeError):
        return canonical(arguments)


def _mark(item: JsonObject) -> str | bytes:
    identity = item.get("id")
    return identity if isinstance(identity, str) and identity else canonical(item)
