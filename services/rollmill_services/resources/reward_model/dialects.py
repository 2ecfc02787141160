"""What the engines are asked and what they answer; each has a way to answer probabilities instead of scores.

Source: the request and response types of vLLM (`/classify` of pooling models), SGLang (`/classify`) and Text
Embeddings Inference (`/predict`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import UpstreamError
from rollmill.openai.items import as_object
from rollmill_services.resources.reward_model.rendering import Rendered


class Dialect(Protocol):
    """One engine's JSON."""

    path: ClassVar[str]
    most_items: ClassVar[int | None]
    """Most conversations that one request may have, where the engine has such a limit."""
    has_switch: ClassVar[bool]
    """Whether a request can ask for probabilities instead, which shows whether it can ask for scores at all."""

    def body(self, batch: Sequence[Rendered], *, raw: bool) -> JsonObject:
        """Return the request for a batch."""

    def outputs(self, answer: JsonValue, count: int) -> list[list[float]]:
        """Return the outputs of each conversation in order.

        Raises:
            UpstreamError: the answer does not have exactly one entry for each.
        """


@dataclass(frozen=True, slots=True)
class Vllm:
    """`vllm serve MODEL --runner pooling`. Without `use_activation: false` it applies a sigmoid or softmax."""

    model: str
    path: ClassVar[str] = "/classify"
    most_items: ClassVar[int | None] = None
    has_switch: ClassVar[bool] = True

    def body(self, batch: Sequence[Rendered], *, raw: bool) -> JsonObject:
        """See `Dialect.body`."""
        return {"model": self.model, "input": [list(item.ids) for item in batch], "use_activation": not raw}

    def outputs(self, answer: JsonValue, count: int) -> list[list[float]]:
        """See `Dialect.outputs`; entries may come in any order."""
        entries = _entries(as_object(answer).get("data"), count)
        places = [entry.get("index") for entry in entries]
        if sorted(place for place in places if isinstance(place, int)) != list(range(count)):
            raise _malformed("its entries are not numbered 0, 1, ...")
        ordered = sorted(entries, key=lambda entry: int(entry["index"]))
        return [_numbers(entry.get("probs")) for entry in ordered]


@dataclass(frozen=True, slots=True)
class Sglang:
    """`python -m sglang.launch_server --is-embedding`. Its `/v1/classify` would answer a softmax."""

    model: str
    path: ClassVar[str] = "/classify"
    most_items: ClassVar[int | None] = None
    has_switch: ClassVar[bool] = False

    def body(self, batch: Sequence[Rendered], *, raw: bool) -> JsonObject:
        """See `Dialect.body`; there is no switch."""
        return {"model": self.model, "input_ids": [list(item.ids) for item in batch]}

    def outputs(self, answer: JsonValue, count: int) -> list[list[float]]:
        """See `Dialect.outputs`."""
        return [_numbers(entry.get("embedding")) for entry in _entries(answer, count)]


@dataclass(frozen=True, slots=True)
class Tei:
    """Text Embeddings Inference. It takes text; a text stands in a list of its own, since two would be a pair."""

    path: ClassVar[str] = "/predict"
    most_items: ClassVar[int | None] = 32
    has_switch: ClassVar[bool] = True

    def body(self, batch: Sequence[Rendered], *, raw: bool) -> JsonObject:
        """See `Dialect.body`."""
        return {"inputs": [[item.text] for item in batch], "truncate": False, "raw_scores": raw}

    def outputs(self, answer: JsonValue, count: int) -> list[list[float]]:
        """See `Dialect.outputs`; several outputs come sorted by size, so they are put in order of their labels."""
        rows = answer if isinstance(answer, list) else []
        if len(rows) != count or not all(isinstance(row, list) for row in rows):
            raise _malformed(f"it has no {count} lists of predictions")
        ordered = [
            sorted((as_object(entry) for entry in row), key=lambda entry: str(entry.get("label"))) for row in rows
        ]
        return [_numbers([entry.get("score") for entry in row]) for row in ordered]


def dialect_of(backend: str, model: str) -> Dialect:
    """Return the dialect of a backend's name."""
    return Tei() if backend == "tei" else Sglang(model) if backend == "sglang" else Vllm(model)


def _entries(value: JsonValue, count: int) -> list[JsonObject]:
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    if len(entries) != count:
        raise _malformed(f"it has {len(entries)} entries for {count} conversations")
    return entries


def _numbers(value: JsonValue) -> list[float]:
    numbers = value if isinstance(value, list) else []
    if not numbers or not all(isinstance(number, int | float) for number in numbers):
        raise _malformed("an entry has no numbers")
    return [float(number) for number in numbers]


def _malformed(what: str) -> UpstreamError:
    return UpstreamError(f"the engine's answer is not usable: {what}", retryable=False)
