"""Puts a model's parts together: tokenizer, head, and workers on this machine or at an engine."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rollmill.client.http import HttpTransport
from rollmill.contracts.json import JsonObject
from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.batching import BatchLimits
from rollmill_services.resources.reward_model.checkpoint import ModelFacts, check_config, load_config, read_facts
from rollmill_services.resources.reward_model.dialects import dialect_of
from rollmill_services.resources.reward_model.engine import Engine, RemoteWorker, count_raw_outputs
from rollmill_services.resources.reward_model.local import load_local
from rollmill_services.resources.reward_model.member import Member
from rollmill_services.resources.reward_model.rendering import Renderer, load_tokenizer
from rollmill_services.resources.reward_model.scheduler import Scheduler
from rollmill_services.resources.reward_model.scores import Head
from rollmill_services.resources.reward_model.settings import ModelSettings, RewardModelSettings
from rollmill_services.resources.reward_model.worker import Worker

OnLost: TypeAlias = Callable[[str], None]
"""Told when a model has no worker left, and why."""

_ENGINE_TOKENS = 16_384
_PROBES = ("What is 2 + 2?", "Name a river.", "Say something kind.")


@dataclass(frozen=True, slots=True)
class _Scoring:
    """What scores: workers, how they batch, the model's outputs, and what is told about them."""

    workers: Sequence[Worker]
    limits: BatchLimits
    labels: tuple[str, ...]
    facts: JsonObject


async def open_member(model: ModelSettings, settings: RewardModelSettings, *, on_lost: OnLost) -> Member:
    """Load, check and warm up one model.

    Raises:
        ConfigError: it cannot be served as the settings want it.
    """
    trusted = settings.trust_remote_code
    tokenizer = await asyncio.to_thread(load_tokenizer, model.model_name, model.tokenizer, trust_remote_code=trusted)
    renderer = Renderer(tokenizer, settings, options=model.tokenizer.chat_template_kwargs or {})
    config = await asyncio.to_thread(load_config, model, trust_remote_code=trusted)
    facts = read_facts(config)
    longest = settings.max_model_len or facts.max_positions
    if longest is None:
        raise ConfigError(f"{model.model_name} does not tell how long its input may be: set max_model_len")
    if settings.backend == "local":
        check_config(model.model_name, config)
        Head(model.score, facts.labels)  # refuses before the weights are read
        scoring = await _locally(model, settings, longest)
    else:
        scoring = await _remotely(model, settings, renderer, facts)
    scheduler = Scheduler(
        scoring.workers,
        scoring.limits,
        max_queue_tokens=settings.max_queue_tokens,
        max_wait_seconds=settings.max_wait_ms / 1000,
        on_lost=on_lost,
    )
    head = Head(model.score, scoring.labels)
    scheduler.open()
    return Member(model.model_name, renderer, head, scheduler, settings, max_model_len=longest, facts=scoring.facts)


async def _locally(model: ModelSettings, settings: RewardModelSettings, longest: int) -> _Scoring:
    local = await asyncio.to_thread(load_local, model, settings, longest)
    facts: JsonObject = {
        "device": local.device,
        "precision": local.precision,
        "batching": "packed" if local.limits.packed else "padded",
        "batch_difference": local.batch_difference,
    }
    return _Scoring(local.workers, local.limits, local.labels, facts)


async def _remotely(
    model: ModelSettings, settings: RewardModelSettings, renderer: Renderer, facts: ModelFacts
) -> _Scoring:
    dialect = dialect_of(settings.backend, settings.engine_model or model.model_name)
    engine = Engine(HttpTransport(), dialect, settings)
    probes = [renderer.render([{"role": "user", "content": text}]) for text in _PROBES]
    try:
        count = await count_raw_outputs(engine, dialect, probes)
        labels = facts.labels if len(facts.labels) == count else tuple(map(str, range(count)))
        Head(model.score, labels)
    except BaseException:
        await engine.close()
        raise
    items = 1 if settings.deterministic else min(settings.batch_size, dialect.most_items or settings.batch_size)
    limits = BatchLimits(settings.max_batch_tokens or _ENGINE_TOKENS, items, packed=True)
    workers = [RemoteWorker(f"{settings.backend}-{n}", engine) for n in range(settings.max_concurrent_requests)]
    return _Scoring(workers, limits, labels, {"engine": settings.base_url})
