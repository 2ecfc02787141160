"""From messages to token ids: the conversation is rendered once and tokenised once.

Tokenising message by message gives other ids than the model was trained on: tokens cannot merge over a border, and a
template that drops the thoughts of earlier turns renders them twice. `template_mode: nemo_rl` does it all the same.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import ConfigError, InputError
from rollmill_services.resources.reward_model.settings import RewardModelSettings, TokenizerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PASSTHROUGH = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_PROBE: list[JsonObject] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as a model reads it."""

    text: str
    ids: tuple[int, ...]


def load_tokenizer(
    model_name: str, settings: TokenizerSettings, *, trust_remote_code: bool
) -> "PreTrainedTokenizerBase":
    """Load a tokenizer and set its chat template.

    Raises:
        ConfigError: transformers is missing, the tokenizer cannot be loaded, or it has no chat template.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ConfigError(
            "reward_model needs transformers; install it with: pip install 'rollmill[reward-model]'"
        ) from None
    name = settings.name or model_name
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the tokenizer of {name} cannot be loaded: {error}") from None
    logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)  # lengths are checked here
    template = settings.chat_template
    if template == "passthrough":
        tokenizer.chat_template = PASSTHROUGH
    elif template not in (None, "default"):
        tokenizer.chat_template = template
    if not tokenizer.chat_template:
        raise ConfigError(f"{name} has no chat template: give tokenizer.chat_template, or passthrough for plain text")
    return tokenizer


class Renderer:
    """Renders and tokenises conversations for one model. Not for several threads at once.

    Raises:
        ConfigError: the template writes the token that begins a text twice.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", settings: RewardModelSettings, *, options: JsonObject
    ) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._by_message = settings.template_mode == "nemo_rl"
        self._plain = tokenizer.chat_template == PASSTHROUGH
        self._bos = str(tokenizer.bos_token or "")
        self._eos = str(tokenizer.eos_token or "")
        special = sorted({token for token in tokenizer.all_special_tokens if len(token) > 1}, key=len, reverse=True)
        escapes = settings.special_tokens == "escape" and bool(special)
        self._special = re.compile("|".join(map(re.escape, special))) if escapes else None
        self._check_beginning()

    def render(self, messages: Sequence[JsonObject]) -> Rendered:
        """Render a conversation.

        Raises:
            InputError: the template refuses it, for example because of the order of its roles.
        """
        safe = [self._safe_message(message) for message in messages]
        if self._by_message:
            chunks = self._chunks(safe)
            return Rendered("".join(chunks), tuple(token for chunk in chunks for token in self._ids(chunk)))
        text = self._apply(safe)
        return self.rendered(self._framed(text) if self._plain else text)

    def rendered(self, text: str) -> Rendered:
        """Tokenise a text that is rendered already, control tokens and all."""
        text = _encodable(text)
        return Rendered(text, tuple(self._ids(text)))

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _apply(self, messages: list[JsonObject]) -> str:
        from jinja2 import TemplateError

        try:
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=False, **self._options
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise InputError(f"the model's chat template refuses this conversation: {error}") from None
        return str(text)

    def _framed(self, text: str) -> str:
        first = "" if text.startswith(self._bos) else self._bos
        last = "" if text.rstrip("\n").endswith(self._eos) else self._eos
        return f"{first}{text}{last}"

    def _chunks(self, messages: list[JsonObject]) -> list[str]:
        """NeMo RL's way: each message is what its rendering adds after the first character that differs."""
        chunks: list[str] = []
        before = ""
        for count in range(1, len(messages) + 1):
            text = self._apply(messages[:count])
            chunks.append(text[_shared(before, text) :])
            before = text
        if not chunks[0].startswith(self._bos):
            chunks[0] = self._bos + chunks[0]
        if not chunks[-1].rstrip("\n").endswith(self._eos):
            chunks[-1] += self._eos
        return chunks

    def _safe_message(self, message: JsonObject) -> JsonObject:
        return {name: self._safe(value) for name, value in message.items()}

    def _safe(self, value: JsonValue) -> JsonValue:
        """Make every string encodable, and control tokens that are spelled out in it ordinary text."""
        if isinstance(value, str):
            text = _encodable(value)
            return self._special.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) if self._special else text
        if isinstance(value, list):
            return [self._safe(item) for item in value]
        return self._safe_message(value) if isinstance(value, dict) else value

    def _check_beginning(self) -> None:
        first = self._tokenizer.bos_token_id
        if first is not None and self.render(_PROBE).ids[:2] == (first, first):
            raise ConfigError(f"the chat template writes {self._bos} twice: correct tokenizer.chat_template")


def _encodable(text: str) -> str:
    """Replace what UTF-8 cannot express: half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _shared(left: str, right: str) -> int:
    """Length of the common beginning of two texts."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
