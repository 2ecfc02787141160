"""Makes a tiny reward model with random weights and a tokenizer of its own, without any download.

Its scores mean nothing; tests, benchmarks and the example use it in place of a real one.

Run:  python -m rollmill_services.resources.reward_model.tiny --output results/tiny-reward-model
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_SEED = 0


@dataclass(frozen=True, slots=True)
class TinyShape:
    """How large the model is."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    key_value_heads: int = 2
    max_positions: int = 2048
    labels: int = 1
    spread: float = 0.3
    """Standard deviation of the weights; large enough by default to show a mistake in the scores."""


def make_checkpoint(
    folder: Path, shape: TinyShape | None = None, *, chat_template: str | None = CHAT_TEMPLATE, seed: int = _SEED
) -> Path:
    """Write a Qwen3 sequence-classification checkpoint and its byte-level tokenizer; return the folder."""
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    size = shape or TinyShape()
    tokenizer_size = make_tokenizer(folder, chat_template=chat_template)
    config = Qwen3Config(
        vocab_size=tokenizer_size,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.hidden // size.heads,
        max_position_embeddings=size.max_positions,
        num_labels=size.labels,
        pad_token_id=0,
        initializer_range=size.spread,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForSequenceClassification(config).save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path, *, chat_template: str | None = CHAT_TEMPLATE) -> int:
    """Write a byte-level tokenizer whose padding and end of text are the same token; return its number of tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("e", "r"), ("i", "n"), ("t", "h")]
    words = [*alphabet, *("".join(pair) for pair in pairs)]
    tokenizer = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    end, *others = SPECIAL_TOKENS
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, extra_special_tokens=others
    )
    wrapped.chat_template = chat_template
    wrapped.save_pretrained(folder)
    return len(wrapped)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/tiny-reward-model"))
    make_checkpoint(parser.parse_args().output)
