"""Models on this machine's devices, each worker a thread of its own so that the event loop never waits for one."""

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.batching import BatchLimits
from rollmill_services.resources.reward_model.checkpoint import load_model, read_facts
from rollmill_services.resources.reward_model.forward import (
    Forward,
    difference,
    one_by_one,
    packed,
    padded,
    probe_batch,
    use_packing,
    why_not_packed,
)
from rollmill_services.resources.reward_model.rendering import Rendered
from rollmill_services.resources.reward_model.settings import ModelSettings, RewardModelSettings
from rollmill_services.resources.reward_model.worker import WorkerLostError

if TYPE_CHECKING:
    from torch import dtype
    from transformers import PreTrainedModel

log = structlog.get_logger(__name__)

_GPU_TOKENS, _CPU_TOKENS = 16_384, 2_048
_EXACT_TOLERANCE, _HALF_TOLERANCE = 1e-4, 0.15
"""Greatest `difference` of packed and single scores; the traps of packing are far above, rounding far below."""
_DEAD_DEVICE = ("CUDA error", "device-side assert", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A loaded model: its workers and what was found out about it."""

    workers: list["LocalWorker"]
    limits: BatchLimits
    labels: tuple[str, ...]
    device: str
    precision: str
    batch_difference: float
    """Greatest difference between a batch's scores and those of its conversations alone, as measured at load."""


class LocalWorker:
    """One thread that scores on one device."""

    def __init__(self, name: str, forward: Forward, *, cpu_threads: int | None) -> None:
        self.name = name
        self._forward = forward
        start = None if cpu_threads is None else partial(_set_threads, cpu_threads)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=start)

    async def outputs(self, batch: Sequence[Rendered]) -> list[list[float]]:
        """See `Worker.outputs`."""
        ids = [item.ids for item in batch]
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._forward, ids)
        except RuntimeError as error:
            if any(sign in str(error) for sign in _DEAD_DEVICE):
                raise WorkerLostError(f"{self.name}: {str(error).splitlines()[0]}") from error
            raise

    async def close(self) -> None:
        """End the thread when its batch is done."""
        await asyncio.to_thread(self._thread.shutdown)


def load_local(model: ModelSettings, settings: RewardModelSettings, longest: int) -> LocalModel:
    """Load a model once for each device, choose how to batch, check that against single scores, and warm up.

    Args:
        model: what to load.
        settings: of the service.
        longest: most tokens of a conversation.

    Raises:
        ConfigError: the model cannot be served, or packing was asked for and does not work.
    """
    try:
        import torch
    except ImportError:
        raise ConfigError("reward_model needs torch; install it with: pip install 'rollmill[reward-model]'") from None
    devices = plan_devices(settings, torch.cuda.device_count())
    on_gpu = devices[0] != "cpu"
    kind = _precision(settings, on_gpu=on_gpu)
    loaded = {device: _load(model, settings, device, kind) for device in dict.fromkeys(devices)}
    forward, measured, is_packed = _choose_forward(loaded, settings, exact=kind == torch.float32)
    most = settings.max_batch_tokens or (_GPU_TOKENS if on_gpu else _CPU_TOKENS)
    limits = BatchLimits(most, 1 if settings.deterministic else settings.batch_size, packed=is_packed)
    labels = read_facts(loaded[devices[0]].config).labels
    threads = None if on_gpu else max(1, (os.cpu_count() or 1) // len(devices))
    workers = [
        LocalWorker(f"{device}-{index}", partial(forward, loaded[device]), cpu_threads=threads)
        for index, device in enumerate(devices)
    ]
    for device in loaded:
        _warm_up(partial(forward, loaded[device]), limits, longest)
    return LocalModel(workers, limits, labels, devices[0], str(kind).removeprefix("torch."), measured)


def plan_devices(settings: RewardModelSettings, gpus: int) -> list[str]:
    """Return the device of each worker.

    Raises:
        ConfigError: GPUs are asked for that are not there.
    """
    wanted = settings.device
    if wanted.startswith("cuda:"):
        devices = [wanted]
        missing = int(wanted.removeprefix("cuda:")) >= gpus
    else:
        devices = [f"cuda:{index}" for index in range(gpus)] if wanted in ("auto", "cuda") else []
        missing = wanted == "cuda" and not gpus
    if missing:
        raise ConfigError(f"device is {wanted}, but there are {gpus} visible GPUs")
    devices = devices[: settings.resources.gpus_per_node] or ["cpu"]
    count = len(devices) if settings.replicas == "auto" else settings.replicas
    return [devices[index % len(devices)] for index in range(count)]


def _precision(settings: RewardModelSettings, *, on_gpu: bool) -> "dtype":
    """`auto` is bfloat16 on GPUs; on CPUs float32, whose scores do not depend on the batch."""
    import torch

    name = settings.precision
    if name == "auto":
        name = "bfloat16" if on_gpu else "float32"
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return kinds[name]


def _load(model: ModelSettings, settings: RewardModelSettings, device: str, kind: "dtype") -> "PreTrainedModel":
    loaded = load_model(model, kind, trust_remote_code=settings.trust_remote_code)
    return loaded.to(device)


def _choose_forward(
    loaded: "dict[str, PreTrainedModel]", settings: RewardModelSettings, *, exact: bool
) -> "tuple[Callable[[PreTrainedModel, Sequence[Sequence[int]]], list[list[float]]], float, bool]":
    """Return the form of the forward pass, its measured difference from single scores, and whether it packs."""
    models = list(loaded.values())
    batch = probe_batch(models[0].config)
    alone = one_by_one(models[0], batch)
    flash = _flash_is_there(on_gpu=models[0].device.type == "cuda", exact=exact)
    obstacle = why_not_packed(models[0])
    worth_it = settings.wants_packing or (settings.batching == "auto" and (flash or models[0].device.type == "cpu"))
    if worth_it and not obstacle:
        for model in models:
            use_packing(model, flash=flash)
        measured = difference(lambda _: alone, partial(packed, models[0]), batch)
        if measured <= (_EXACT_TOLERANCE if exact else _HALF_TOLERANCE):
            return packed, measured, True
        obstacle = f"packed scores differ from single ones by {measured:.2g}"
        for model in models:
            model.set_attn_implementation("sdpa")
    if settings.wants_packing:
        raise ConfigError(f"batching is packed, but the model cannot be packed: {obstacle}")
    if worth_it:
        log.warning("packing_not_possible", reason=obstacle)
    return padded, difference(lambda _: alone, partial(padded, models[0]), batch), False


def _flash_is_there(*, on_gpu: bool, exact: bool) -> bool:
    if not on_gpu or exact:
        return False
    from transformers.utils import is_flash_attn_2_available

    return bool(is_flash_attn_2_available())


def _warm_up(forward: Forward, limits: BatchLimits, longest: int) -> None:
    """Score batches of the smallest, a middling and the largest shape, so that the first callers do not pay for it."""
    length = min(longest, max(1, limits.max_tokens // 8))
    count = max(1, min(limits.max_items, limits.max_tokens // length))
    for shape in ([1], [length] * max(1, count // 2), [length] * count):
        forward([[0] * size for size in shape])


def _set_threads(count: int) -> None:
    import torch

    torch.set_num_threads(count)
