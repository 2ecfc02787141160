"""The reward model inside a trainer's process, with the interface of NeMo RL's environments."""

import asyncio
import math
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import NotReadyError, RollmillError, UpstreamError
from rollmill_services.resources.reward_model.conversations import chat_messages
from rollmill_services.resources.reward_model.metrics import PREFIX, reward_metrics
from rollmill_services.resources.reward_model.scheduler import FAILURE_TYPE
from rollmill_services.resources.reward_model.scorer import Judgement, Scorer
from rollmill_services.resources.reward_model.settings import RewardModelSettings
from rollmill_services.resources.reward_model.steps import answer_of, error_entry, observation

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class EnvironmentReturn(NamedTuple):
    """What a step gives for a batch of B conversations."""

    observations: list[JsonObject]
    metadata: list[JsonObject | None]
    """None, or for a conversation that was not scored `{"reward_model_failed": {type, detail, retryable}}`."""
    next_stop_strings: list[None]
    rewards: "Tensor"
    """float32 of shape [B], on the CPU."""
    terminateds: "Tensor"
    """bool of shape [B], all true."""
    answers: list[str]


class RewardModelEnvironment:
    """Scores message logs. Loads the model at once; use it as a context manager, or call `shutdown`.

    Its methods may be called from several threads: their conversations are batched together.

    Args:
        config: the settings of the service, which are those of NeMo RL's `env.reward_model`.
        on_failure: whether a conversation that cannot be scored raises, or has the reward NaN and a note in
            `metadata`. It never has the reward 0.

    Raises:
        ConfigError: the configuration is wrong, or the model cannot be served.
    """

    def __init__(self, config: Mapping[str, JsonValue], *, on_failure: Literal["raise", "nan"] = "raise") -> None:
        self._settings = RewardModelSettings.parse(config, where="reward_model")
        self._raises = on_failure == "raise"
        self._scorer = Scorer(self._settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reward-model", daemon=True)
        self._thread.start()
        try:
            self._run(self._scorer.open())
        except BaseException:
            self._stop()
            raise

    def __enter__(self) -> "RewardModelEnvironment":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def preprocess_data(self, message_logs: Sequence[Sequence[JsonObject]]) -> "dict[str, Tensor]":
        """Render and tokenise each log once.

        Returns:
            `input_ids` of shape [B, longest], zeros on the right, and `input_lengths` of shape [B]; both int64.

        Raises:
            InputError: a log is not a list of text messages, or the chat template refuses it.
        """
        import torch

        rendered = self._run(self._scorer.render(_checked(message_logs)))
        lengths = torch.tensor([len(_present(one).ids) for one in rendered])
        ids = torch.zeros(len(rendered), int(lengths.max()) if len(rendered) else 0, dtype=torch.int64)
        for row, one in zip(ids, rendered, strict=True):
            row[: len(_present(one).ids)] = torch.tensor(_present(one).ids)
        return {"input_ids": ids, "input_lengths": lengths}

    def step(
        self, message_logs: Sequence[Sequence[JsonObject]], env_infos: Sequence[JsonValue] | None = None
    ) -> EnvironmentReturn:
        """Score a batch of message logs; `env_infos` is not used.

        Raises:
            InputError: a log is not a list of text messages.
            UpstreamError: some could not be scored, and `on_failure` is `raise`; `errors` has one entry or None each.
        """
        import torch

        judged = self._run(self._scorer.score(_checked(message_logs))) if message_logs else []
        errors = [error_entry(one) if isinstance(one, RollmillError) else None for one in judged]
        failed = [error for error in errors if error]
        if failed and self._raises:
            raise UpstreamError(
                f"{len(failed)} of {len(judged)} conversations were not scored; the first: {failed[0]['detail']}",
                upstream_type=FAILURE_TYPE,
                errors=errors,
                retryable=all(error["retryable"] for error in failed),
            )
        rewards = [one.reward if isinstance(one, Judgement) else math.nan for one in judged]
        return EnvironmentReturn(
            observations=[observation(one) for one in judged],
            metadata=[{FAILURE_TYPE: error} if error else None for error in errors],
            next_stop_strings=[None] * len(judged),
            rewards=torch.tensor(rewards, dtype=torch.float32),
            terminateds=torch.ones(len(judged), dtype=torch.bool),
            answers=[answer_of(log) for log in message_logs],
        )

    def global_post_process_and_metrics(
        self, batch: Mapping[str, JsonValue]
    ) -> tuple[Mapping[str, JsonValue], dict[str, float]]:
        """Return the batch as it is, and the five metrics over its `rewards` or `total_reward`; NaN is left out."""
        told = batch.get("rewards", batch.get("total_reward"))
        rewards = [] if told is None else [float(value) for value in told]
        metrics = reward_metrics([value for value in rewards if math.isfinite(value)])
        return batch, metrics | {f"{PREFIX}/num_samples": len(batch["message_log"])}

    def shutdown(self) -> None:
        """Finish what was accepted, release the model, and end the thread. Doing it twice is no error."""
        if self._thread.is_alive():
            self._run(self._scorer.close())
            self._stop()

    def _run(self, work: Coroutine[None, None, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise NotReadyError("the environment was shut down")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _checked(message_logs: Sequence[Sequence[JsonObject]]) -> list[list[JsonObject]]:
    return [chat_messages(list(log), f"/message_logs/{index}") for index, log in enumerate(message_logs)]


def _present(rendered: "T | RollmillError") -> "T":
    if isinstance(rendered, RollmillError):
        raise rendered
    return rendered
