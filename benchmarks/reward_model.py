"""What does it cost to score conversations of mixed lengths, by how they are batched?

Run:  python benchmarks/reward_model.py

Scores the same random conversations with a random model in every way, interleaved in several rounds: one by one; in
batches of eight in order of arrival, padded to the longest conversation of the whole step (NeMo RL's way); in batches
sorted by length and padded within a budget of tokens; packed without padding within the same budget. Prints the best
process CPU time of each (on a GPU the best wall time), and the greatest difference from the scores one by one.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rollmill_services.resources.reward_model.batching import BatchLimits, choose_batch
from rollmill_services.resources.reward_model.checkpoint import load_model
from rollmill_services.resources.reward_model.forward import (
    Forward,
    one_by_one,
    packed,
    padded,
    use_packing,
    why_not_packed,
)
from rollmill_services.resources.reward_model.settings import ModelSettings
from rollmill_services.resources.reward_model.tiny import TinyShape, make_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ids: TypeAlias = Sequence[int]
NEMO_BATCH = 8
SEED = 7


@dataclass
class Case:
    """One way to score the conversations."""

    name: str
    forward: Forward
    slots: int
    seconds: float = float("inf")
    difference: float = 0.0


def conversations(count: int, vocabulary: int) -> list[list[int]]:
    """Draw log-normal lengths (median 180, 20 to 800) and random tokens."""
    draw = random.Random(SEED)
    lengths = [min(800, max(20, round(draw.lognormvariate(5.193, 0.8)))) for _ in range(count)]
    return [[draw.randrange(1, vocabulary) for _ in range(length)] for length in lengths]


def padded_to_the_step(model: "PreTrainedModel", batch: Sequence[Ids]) -> list[list[float]]:
    """NeMo RL's way: batches in order of arrival, each as wide as the longest conversation of the step."""
    import torch
    from torch.nn.functional import linear

    width = max(len(ids) for ids in batch)
    outputs: list[list[float]] = []
    for begin in range(0, len(batch), NEMO_BATCH):
        part = batch[begin : begin + NEMO_BATCH]
        rows = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in part], device=model.device)
        with torch.inference_mode():
            hidden = model.base_model(
                input_ids=rows, attention_mask=torch.ones_like(rows, dtype=torch.bool), use_cache=False
            ).last_hidden_state
            last = hidden[torch.arange(len(part)), torch.tensor([len(ids) for ids in part]) - 1]
            outputs += linear(last.float(), model.score.weight.float()).tolist()
    return outputs


def plan(lengths: Sequence[int], limits: BatchLimits) -> list[list[int]]:
    """Divide a step into batches as the scheduler would: the oldest first, filled with what fits best."""
    left = list(range(len(lengths)))
    batches = []
    while left:
        chosen = {left[place] for place in choose_batch([lengths[index] for index in left], limits)}
        batches.append(sorted(chosen))
        left = [index for index in left if index not in chosen]
    return batches


def in_batches(forward: Forward, limits: BatchLimits, batch: Sequence[Ids]) -> list[list[float]]:
    """Score a step in the scheduler's batches."""
    outputs: dict[int, list[float]] = {}
    for indices in plan([len(ids) for ids in batch], limits):
        outputs.update(zip(indices, forward([batch[index] for index in indices]), strict=True))
    return [outputs[index] for index in range(len(batch))]


def slots(lengths: Sequence[int], limits: BatchLimits) -> int:
    """Count the token slots of a step, padding and all."""
    return sum(limits.slots([lengths[index] for index in batch]) for batch in plan(lengths, limits))


def measure(work: Callable[[], object], *, on_gpu: bool) -> float:
    """Return the CPU seconds of this process, or on a GPU the wall seconds."""
    import torch

    clock = time.perf_counter if on_gpu else time.process_time
    start = clock()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def make_cases(plain: "PreTrainedModel", packing: "PreTrainedModel", batch: Sequence[Ids], budget: int) -> list[Case]:
    """Make every way to score; packing needs a model of its own, whose attention knows the borders."""
    lengths = [len(ids) for ids in batch]
    sorted_limits = BatchLimits(budget, 64, packed=False)
    packed_limits = BatchLimits(budget, 64, packed=True)
    return [
        Case("one by one", partial(one_by_one, plain), sum(lengths)),
        Case("arrival, step-padded (NeMo RL)", partial(padded_to_the_step, plain), len(batch) * max(lengths)),
        Case(
            "length-sorted, padded",
            partial(in_batches, partial(padded, plain), sorted_limits),
            slots(lengths, sorted_limits),
        ),
        Case("packed", partial(in_batches, partial(packed, packing), packed_limits), slots(lengths, packed_limits)),
    ]


def load(folder: Path, shape: TinyShape, device: str) -> "PreTrainedModel":
    """Load the benchmark's model, the same one each time."""
    import torch

    if not (folder / "config.json").exists():
        make_checkpoint(folder, shape)
    return load_model(ModelSettings(model_name=str(folder)), torch.float32, trust_remote_code=False).to(device)


def show(cases: Sequence[Case], batch: Sequence[Ids], *, on_gpu: bool) -> None:
    """Print the table."""
    tokens = sum(map(len, batch))
    nemo = cases[1].seconds
    unit = "wall" if on_gpu else "CPU"
    sys.stdout.write(f"{len(batch)} conversations, {tokens} tokens, {min(map(len, batch))} to {max(map(len, batch))}\n")
    sys.stdout.write(f"{'':32}{'slots/token':>12}{unit + ' s':>9}{'per s':>8}{'vs NeMo RL':>12}{'difference':>12}\n")
    for case in cases:
        sys.stdout.write(
            f"{case.name:32}{case.slots / tokens:12.2f}{case.seconds:9.2f}{len(batch) / case.seconds:8.1f}"
            f"{nemo / case.seconds:11.2f}x{case.difference:12.1e}\n"
        )


def main(arguments: argparse.Namespace) -> None:
    """Measure and print."""
    import torch

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    torch.set_num_threads(1)
    shape = TinyShape(layers=arguments.layers, hidden=arguments.hidden, spread=0.06)  # scores of about 1
    with tempfile.TemporaryDirectory() as folder:
        plain, packing = (load(Path(folder), shape, device) for _ in range(2))
        if obstacle := why_not_packed(packing):
            raise SystemExit(f"the model cannot be packed: {obstacle}")
        use_packing(packing, flash=False)
        batch = conversations(arguments.conversations, plain.config.vocab_size)
        cases = make_cases(plain, packing, batch, arguments.budget)
        reference = cases[0].forward(batch)
        for _ in range(arguments.rounds):
            for case in cases:
                case.seconds = min(case.seconds, measure(partial(case.forward, batch), on_gpu=on_gpu))
        for case in cases:
            found = case.forward(batch)
            case.difference = max(abs(one - other) for [one], [other] in zip(reference, found, strict=True))
    show(cases, batch, on_gpu=on_gpu)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget", type=int, default=2048, help="tokens of a batch")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    main(parser.parse_args())
