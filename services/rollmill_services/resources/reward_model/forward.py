"""The forward pass in three forms that must agree: one by one, padded, packed.

A score is read at the last token, found by the known length: looking for the last token that is no padding reads
the wrong one when padding and end of text are the same token. Padded batches go without a mask, since in a causal
model nothing looks to the right. Packed batches have no padding: the sequences lie in one row, and attention is told
where each begins. That goes wrong silently (a mask or a cache makes sequences see each other), so `difference` is
measured at load.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import PreTrainedConfig, PreTrainedModel

Ids: TypeAlias = Sequence[int]
Forward: TypeAlias = Callable[[Sequence[Ids]], list[list[float]]]
"""Takes token ids of several conversations, gives the outputs of each."""

VARLEN = "rollmill_varlen_sdpa"
FLASH = "flash_attention_2"
_PROBE_LENGTHS = (1, 2, 3, 17, 33, 5, 64, 9)


def why_not_packed(model: "PreTrainedModel") -> str:
    """Say why a model's sequences cannot be packed; empty when they can."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention"}:
        return f"it has layers of the kinds {', '.join(sorted(kinds))}"
    if not kinds and getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return "it attends in a sliding window"
    if getattr(config, "attn_logit_softcapping", None):
        return "it caps attention logits"
    return "" if getattr(model, "_supports_attention_backend", False) else "its attention cannot be replaced"


def use_packing(model: "PreTrainedModel", *, flash: bool) -> None:
    """Make a model's attention one that keeps packed sequences apart."""
    if flash:
        model.set_attn_implementation(FLASH)
        return
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(VARLEN, _varlen_sdpa)
    AttentionMaskInterface.register(VARLEN, _no_mask)
    model.set_attn_implementation(VARLEN)


def _no_mask(*_: object, **__: object) -> None:
    """Make no mask: `_varlen_sdpa` needs none."""


def _varlen_sdpa(
    module: "Module",
    query: "Tensor",
    key: "Tensor",
    value: "Tensor",
    attention_mask: "Tensor | None" = None,
    *,
    scaling: float | None = None,
    cu_seq_lens_q: "Tensor | None" = None,
    **_: object,
) -> "tuple[Tensor, None]":
    """Attend within each sequence; tensors are [1, heads, tokens, size], `cu_seq_lens_q` holds the borders.

    Without borders the rows are sequences by themselves, which is plain causal attention.
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    borders = [0, query.shape[2]] if cu_seq_lens_q is None else cu_seq_lens_q.tolist()
    grouped = key.shape[1] != query.shape[1]
    parts = [
        scaled_dot_product_attention(
            query[:, :, begin:end],
            key[:, :, begin:end],
            value[:, :, begin:end],
            is_causal=True,
            scale=scaling,
            enable_gqa=grouped,
        )
        for begin, end in pairwise(borders)
    ]
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def padded(model: "PreTrainedModel", batch: Sequence[Ids]) -> list[list[float]]:
    """Score a batch padded on the right to its longest conversation."""
    import torch

    device = model.device
    lengths = [len(ids) for ids in batch]
    longest = max(lengths)
    rows = [[*ids, *[0] * (longest - len(ids))] for ids in batch]  # what is to the right of the last token is not read
    with torch.inference_mode():
        hidden = model.base_model(input_ids=torch.tensor(rows, device=device), use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(batch), device=device), torch.tensor(lengths, device=device) - 1]
        return _scores(model, last)


def packed(model: "PreTrainedModel", batch: Sequence[Ids]) -> list[list[float]]:
    """Score a batch without padding; the model's attention must have been set by `use_packing`."""
    import torch

    device = model.device
    lengths = torch.tensor([len(ids) for ids in batch])
    ends = lengths.cumsum(0)
    borders = torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(device=device, dtype=torch.int32)
    longest = int(lengths.max())
    with torch.inference_mode():
        hidden = model.base_model(
            input_ids=torch.tensor([[token for ids in batch for token in ids]], device=device),
            position_ids=torch.cat([torch.arange(length) for length in lengths.tolist()])[None].to(device),
            attention_mask=None,
            use_cache=False,
            cu_seq_lens_q=borders,
            cu_seq_lens_k=borders,
            max_length_q=longest,
            max_length_k=longest,
        ).last_hidden_state[0]
        return _scores(model, hidden[(ends - 1).to(device)])


def _scores(model: "PreTrainedModel", last: "Tensor") -> list[list[float]]:
    """Apply the head to [conversations, size] in float32: in bfloat16 close scores would become ties."""
    from torch.nn.functional import linear

    head = model.score
    bias = None if head.bias is None else head.bias.float()
    scores: list[list[float]] = linear(last.float(), head.weight.float(), bias).tolist()
    return scores


def one_by_one(model: "PreTrainedModel", batch: Sequence[Ids]) -> list[list[float]]:
    """Score each conversation alone."""
    return [padded(model, [ids])[0] for ids in batch]


def probe_batch(config: "PreTrainedConfig") -> list[list[int]]:
    """Return conversations of several lengths and arbitrary tokens, the same ones each time."""
    size = int(config.get_text_config().vocab_size)
    return [[(31 * index + 7 * place + 1) % size for place in range(n)] for index, n in enumerate(_PROBE_LENGTHS)]


def difference(reference: Forward, candidate: Forward, batch: Sequence[Ids]) -> float:
    """Return the greatest difference of two forms' outputs, relative to the greatest output when that is above 1.

    Infinite when the forms do not even agree in shape or an output is not a number.
    """
    expected = [value for row in reference(batch) for value in row]
    found = [value for row in candidate(batch) for value in row]
    if len(expected) != len(found):
        return float("inf")
    worst = max(abs(left - right) for left, right in zip(expected, found, strict=True))
    scale = max(1.0, *map(abs, expected))
    return worst / scale if worst == worst else float("inf")
