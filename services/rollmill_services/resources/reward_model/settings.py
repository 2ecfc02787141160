"""Settings of the `reward_model` service, under the names that NeMo RL's reward-model configuration has."""

import re
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import Incidental
from rollmill.contracts.json import JsonObject

Precision = Literal["auto", "float32", "bfloat16", "float16"]
Backend = Literal["local", "vllm", "sglang", "tei"]
TooLong = Literal["error", "truncate_left", "truncate_middle", "reward"]

INERT = ("enabled", "logprob_batch_size", "offload_optimizer_for_logprob", "generation", "dynamic_batching")
"""NeMo RL names that change no score here; `dynamic_batching` is always on."""

_BASE_URL = re.compile(r"https?://[^/\s@?#]+(/[^\s?#]*)?")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class TokenizerSettings(_Part):
    """How conversations become token ids."""

    name: str | None = None
    """Tokenizer to load; absent means the model's own."""
    chat_template: str | None = None
    """Absent or `default`: the tokenizer's own. `passthrough`: contents one after the other. Else a Jinja template."""
    chat_template_kwargs: JsonObject | None = None
    """Further variables of the template, such as `enable_thinking`."""
    use_fastokens: bool = False
    """Accepted for NeMo RL's sake; without effect."""


class ScoreSettings(_Part):
    """How the logits of a model become its reward."""

    head: int | None = Field(default=None, ge=0)
    """Which output is the reward, when the model has several."""
    weights: list[float] | None = None
    """Weight of each output, instead of `head`."""
    activation: Literal["none", "sigmoid"] = "none"
    scale: float = 1.0
    shift: float = 0.0
    """The reward is `activation(raw) * scale + shift`."""
    clip: tuple[float, float] | None = None
    """Least and greatest reward."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head is not None and self.weights is not None:
            raise ValueError("give either head or weights")
        if self.clip is not None and self.clip[0] > self.clip[1]:
            raise ValueError("clip must be [least, greatest]")
        return self


class DevicesSettings(_Part):
    """NeMo RL's `resources`: how many devices may be used."""

    gpus_per_node: int | None = Field(default=None, ge=1)
    num_nodes: int = 1

    @field_validator("num_nodes")
    @classmethod
    def _check_num_nodes(cls, value: int) -> int:
        if value != 1:
            raise ValueError("one service runs on one node: start a replica of the service on each")
        return value


class HeadKindSettings(_Part):
    """NeMo RL's `reward_model_cfg`."""

    enabled: bool = True
    reward_model_type: str = "bradley_terry"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.enabled or self.reward_model_type != "bradley_terry":
            raise ValueError("only enabled: true with reward_model_type: bradley_terry is served (one score per text)")
        return self


class PackingSettings(BaseModel):
    """NeMo RL's `sequence_packing`; `enabled: true` asks for packed batches, false leaves the choice open."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    enabled: bool = False


class ModelSettings(_Part):
    """One reward model: what is loaded and how its score is read."""

    model_name: str = Field(min_length=1)
    """Folder or Hugging Face name of a sequence-classification model."""
    checkpoint_path: str | None = None
    """Folder with other weights for it, in the Hugging Face format."""
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    score: ScoreSettings = Field(default_factory=ScoreSettings)


class RewardModelSettings(ServiceSettings):
    """Which reward model scores, on what, and how conversations are batched."""

    model_config = ConfigDict(hide_input_in_errors=True)

    model_name: str = ""
    """Folder or Hugging Face name of a sequence-classification model; empty only with `members`."""
    checkpoint_path: str | None = None
    """Folder with other weights for it, in the Hugging Face format."""
    tokenizer: TokenizerSettings = Field(default_factory=TokenizerSettings)
    score: ScoreSettings = Field(default_factory=ScoreSettings)
    members: list[ModelSettings] = Field(default_factory=list)
    """Several models, each with its own `score`, instead of `model_name`."""
    reduce: Literal["mean", "min", "mean_minus_k_std"] = "mean"
    """How the members' rewards become one."""
    reduce_k: float = Field(default=1.0, ge=0)

    precision: Precision = "auto"
    device: str = "auto"
    """`auto` means every visible GPU, else the CPU; or `cpu`, `cuda`, `cuda:1`."""
    replicas: Annotated[int | Literal["auto"], Incidental()] = "auto"
    """Workers, spread over the devices; `auto` means one for each device."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""

    batch_size: Annotated[int, Incidental()] = Field(default=64, ge=1)
    """Most conversations in one batch."""
    max_batch_tokens: Annotated[int | None, Incidental()] = Field(default=None, ge=1)
    """Most tokens in one batch, padding counted; null means 16384 on GPUs and remote engines, 2048 on CPUs."""
    batching: Literal["auto", "padded", "packed"] = "auto"
    deterministic: bool = False
    """Score each conversation alone, so that no score depends on its neighbours."""
    max_wait_ms: Annotated[float, Incidental()] = Field(default=5.0, ge=0, le=10_000)
    """How long an idle worker waits for more conversations before it takes what there is."""
    max_queue_tokens: Annotated[int, Incidental()] = Field(default=2_000_000, ge=1)
    """Beyond this many waiting tokens calls are answered 429."""
    cached_scores: Annotated[int, Incidental()] = Field(default=4096, ge=0)
    """Most scores remembered by the exact token ids; 0 remembers none."""
    drain_seconds: Annotated[float, Incidental()] = Field(default=30.0, ge=0)
    """How long a shutdown waits for conversations that were accepted."""
    score_timeout_seconds: Annotated[float, Incidental()] = Field(default=300.0, gt=0)
    """Longest time for one call, waiting included."""

    max_model_len: int | None = Field(default=None, ge=1)
    """Longest conversation in tokens; null means what the model's configuration says."""
    on_too_long: TooLong = "error"
    too_long_reward: float = 0.0
    """The reward of a conversation that is too long, with `on_too_long: reward`."""
    template_mode: Literal["whole", "nemo_rl"] = "whole"
    """`nemo_rl` renders and tokenises message by message, only for parity with scores made that way."""
    special_tokens: Literal["escape", "keep"] = "escape"
    """Whether control tokens that are spelled out inside messages lose their meaning, as they should."""

    backend: Backend = "local"
    base_url: Annotated[str, Incidental()] = ""
    """Where the engine is, without `/v1`; for every backend but `local`."""
    api_key: SecretStr | None = None
    engine_model: str = ""
    """The engine's name for the model; empty means `model_name`."""
    max_concurrent_requests: Annotated[int, Incidental()] = Field(default=4, ge=1, le=256)
    max_retries: Annotated[int, Incidental()] = Field(default=4, ge=0, le=20)
    """How often a request is sent to the engine again after an overload or a failed connection."""

    enabled: bool = True
    logprob_batch_size: int | None = None
    offload_optimizer_for_logprob: bool = False
    generation: JsonObject | None = None
    dynamic_batching: JsonObject | None = None
    sequence_packing: PackingSettings = Field(default_factory=PackingSettings)
    resources: DevicesSettings = Field(default_factory=DevicesSettings)
    reward_model_cfg: HeadKindSettings = Field(default_factory=HeadKindSettings)
    dtensor_cfg: JsonObject | None = None
    max_grad_norm: None = None

    @field_validator("replicas")
    @classmethod
    def _check_replicas(cls, value: int | str) -> int | str:
        if isinstance(value, int) and not 1 <= value <= 64:
            raise ValueError("must be auto, or 1 to 64")
        return value

    @field_validator("device")
    @classmethod
    def _check_device(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError("must be auto, cpu, cuda or cuda:N")
        return value

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str) -> str:
        if value and not _BASE_URL.fullmatch(value):
            raise ValueError("must be an http(s) URL without credentials, such as http://localhost:8000")
        url = value.rstrip("/")
        if url.endswith("/v1"):
            raise ValueError("must not end with /v1: those endpoints turn the scores into probabilities")
        return url

    @field_validator("dtensor_cfg")
    @classmethod
    def _check_dtensor_cfg(cls, value: JsonObject | None) -> JsonObject | None:
        told = value or {}
        for name in ("tensor_parallel_size", "context_parallel_size"):
            if (told.get(name) or 1) != 1:
                raise ValueError(f"{name} must be 1; for larger models use backend: vllm with --tensor-parallel-size")
        for name in ("cpu_offload", "activation_checkpointing", "sequence_parallel", "custom_parallel_plan"):
            if told.get(name):
                raise ValueError(f"{name} is not supported for scoring: leave it out")
        return value

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if bool(self.model_name) == bool(self.members):
            raise ValueError("give either model_name or members")
        if (self.backend == "local") != (not self.base_url):
            raise ValueError("base_url belongs to the backends vllm, sglang and tei, which need it")
        if self.members and self.backend != "local":
            raise ValueError("members are scored by backend: local only")
        if self.backend == "tei" and self.on_too_long.startswith("truncate"):
            raise ValueError("tei takes text, which cannot be cut to tokens here: set on_too_long to error or reward")
        return self

    @property
    def models(self) -> list[ModelSettings]:
        """The models that score, at least one."""
        own = {name: getattr(self, name) for name in ModelSettings.model_fields}
        return self.members or [ModelSettings.model_validate(own)]

    @property
    def wants_packing(self) -> bool:
        """Whether packed batches are asked for by name."""
        return self.batching == "packed" or (self.batching == "auto" and self.sequence_packing.enabled)

    @property
    def inert(self) -> list[str]:
        """Names that were given and have no effect."""
        given = [name for name in INERT if name in self.model_fields_set]
        if self.dtensor_cfg is not None:
            given.append("dtensor_cfg")
        return [*given, *(["tokenizer.use_fastokens"] if self.tokenizer.use_fastokens else [])]
