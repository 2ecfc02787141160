"""One reward model: renders, fits, batches and reads scores."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from rollmill.contracts.json import JsonObject
from rollmill.errors import RollmillError
from rollmill_services.resources.reward_model.lengths import Fitted, fit
from rollmill_services.resources.reward_model.rendering import Rendered, Renderer
from rollmill_services.resources.reward_model.scheduler import Scheduler
from rollmill_services.resources.reward_model.scores import Head, Score
from rollmill_services.resources.reward_model.settings import RewardModelSettings

Conversation: TypeAlias = Sequence[JsonObject] | str
"""Chat messages, or a text that is rendered already."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One model's score of one conversation."""

    score: Score | None
    """None when the conversation is too long and gets a fixed reward."""
    num_tokens: int
    """Of the whole conversation, before anything was cut."""
    truncated: bool
    rendered: Rendered


class Member:
    """A model with its tokenizer and its workers.

    Args:
        name: as in the settings.
        renderer: makes token ids.
        head: reads rewards.
        scheduler: scores token ids; opened and closed with the member.
        settings: of the service.
        max_model_len: longest conversation in tokens.
        facts: what the service tells about this model.
    """

    def __init__(
        self,
        name: str,
        renderer: Renderer,
        head: Head,
        scheduler: Scheduler,
        settings: RewardModelSettings,
        *,
        max_model_len: int,
        facts: JsonObject,
    ) -> None:
        self.name = name
        self._renderer = renderer
        self._head = head
        self.scheduler = scheduler
        self._settings = settings
        self._max_model_len = max_model_len
        self._facts = facts
        self._known: OrderedDict[bytes, list[float]] = OrderedDict()
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    async def close(self, drain_seconds: float) -> None:
        """Finish what was accepted within the time, and stop."""
        await self.scheduler.close(drain_seconds)
        await asyncio.to_thread(self._tokenizing.shutdown)

    async def render(self, conversations: Sequence[Conversation]) -> list[Rendered | RollmillError]:
        """Render and tokenise, outside the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._tokenizing, self._render_all, conversations)

    async def score(self, conversations: Sequence[Conversation]) -> list[Scored | RollmillError]:
        """Score conversations; each fails alone.

        Raises:
            OverloadedError: nothing was accepted: the queue is full, or the service is closing.
        """
        loop = asyncio.get_running_loop()
        prepared = await loop.run_in_executor(self._tokenizing, self._prepare_all, conversations)
        outputs = await self._outputs({one.key: one.item for one in prepared if isinstance(one, _Prepared) and one.key})
        return [one if isinstance(one, RollmillError) else self._scored(one, outputs.get(one.key)) for one in prepared]

    def report(self) -> JsonObject:
        """Return what the service tells about this model."""
        return {
            "model": self.name,
            **self._facts,
            "max_model_len": self._max_model_len,
            "labels": list(self._head.labels),
            **self.scheduler.report(),
        }

    def _render_all(self, conversations: Sequence[Conversation]) -> list[Rendered | RollmillError]:
        return [self._render(conversation) for conversation in conversations]

    def _render(self, conversation: Conversation) -> Rendered | RollmillError:
        try:
            if isinstance(conversation, str):
                return self._renderer.rendered(conversation)
            return self._renderer.render(conversation)
        except RollmillError as error:
            return error

    def _prepare_all(self, conversations: Sequence[Conversation]) -> "list[_Prepared | RollmillError]":
        return [self._prepare(conversation) for conversation in conversations]

    def _prepare(self, conversation: Conversation) -> "_Prepared | RollmillError":
        rendered = self._render(conversation)
        if isinstance(rendered, RollmillError):
            return rendered
        try:
            fitted = fit(rendered.ids, self._max_model_len, self._settings.on_too_long)
        except RollmillError as error:
            return error
        return _Prepared(rendered, fitted, b"" if fitted.ids is None else _digest(fitted.ids))

    async def _outputs(self, wanted: dict[bytes, Rendered]) -> dict[bytes, list[float] | BaseException]:
        """Return the outputs by key: remembered ones, and the others as the workers give them."""
        found: dict[bytes, list[float] | BaseException] = {}
        for key in wanted.keys() & self._known.keys():
            self._known.move_to_end(key)
            found[key] = self._known[key]
        missing = {key: item for key, item in wanted.items() if key not in found}
        if not missing:
            return found
        futures = self.scheduler.submit(list(missing.values()))
        with ExitStack() as cancelling:
            for future in futures:
                cancelling.callback(future.cancel)  # also when this call is cancelled: then nobody wants the scores
            answers = await asyncio.gather(*futures, return_exceptions=True)
        for key, answer in zip(missing, answers, strict=True):
            found[key] = answer
            if not isinstance(answer, BaseException):
                self._remember(key, answer)
        return found

    def _remember(self, key: bytes, outputs: list[float]) -> None:
        if self._settings.cached_scores:
            self._known[key] = outputs
            if len(self._known) > self._settings.cached_scores:
                self._known.popitem(last=False)

    def _scored(self, one: "_Prepared", outputs: list[float] | BaseException | None) -> Scored | RollmillError:
        if isinstance(outputs, RollmillError):
            return outputs
        if isinstance(outputs, BaseException):
            raise outputs
        score = None if outputs is None else self._head.score(outputs)
        return Scored(score, len(one.rendered.ids), one.fitted.truncated, one.rendered)


@dataclass(frozen=True, slots=True)
class _Prepared:
    rendered: Rendered
    fitted: Fitted
    key: bytes
    """Digest of the ids that are scored; empty when there is nothing to score."""

    @property
    def item(self) -> Rendered:
        """What the workers are given: the text with the ids that are scored."""
        return Rendered(self.rendered.text, self.fitted.ids or ())


def _digest(ids: Sequence[int]) -> bytes:
    return blake2b(array("q", ids).tobytes(), digest_size=16).digest()
