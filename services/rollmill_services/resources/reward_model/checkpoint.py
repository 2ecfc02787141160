"""Loads a sequence-classification model, and refuses one that would score with random weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.settings import ModelSettings

if TYPE_CHECKING:
    from torch import dtype
    from transformers import PreTrainedConfig, PreTrainedModel

_INSTALL = "reward_model needs torch and transformers; install them with: pip install 'rollmill[reward-model]'"
_ELSEWHERE = "only decoders with a score on the last token are scored here; backend: tei serves other classifiers"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's configuration says."""

    labels: tuple[str, ...]
    max_positions: int | None


def read_facts(config: "PreTrainedConfig") -> ModelFacts:
    """Return the labels of the outputs and the longest input of a model."""
    labels = tuple(str(config.id2label.get(index, index)) for index in range(config.num_labels))
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return ModelFacts(labels, positions if isinstance(positions, int) else None)


def load_config(model: ModelSettings, *, trust_remote_code: bool) -> "PreTrainedConfig":
    """Load a model's configuration.

    Raises:
        ConfigError: transformers is missing, or there is no readable configuration.
    """
    try:
        from transformers import AutoConfig
    except ImportError:
        raise ConfigError(_INSTALL) from None
    try:
        return AutoConfig.from_pretrained(model.model_name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"the configuration of {model.model_name} cannot be loaded: {error}") from None


def check_config(name: str, config: "PreTrainedConfig") -> None:
    """Refuse what cannot be scored before its weights are read.

    Raises:
        ConfigError: the checkpoint has no score head, or is not a causal decoder.
    """
    architectures = [str(each) for each in config.architectures or []]
    if not any(each.endswith("ForSequenceClassification") for each in architectures):
        found = ", ".join(architectures) or "no architecture"
        raise ConfigError(f"{name} is {found} and has no score head: give a ...ForSequenceClassification checkpoint")
    if getattr(config, "use_bidirectional_attention", False) or getattr(config, "is_causal", True) is False:
        raise ConfigError(f"{name} reads in both directions: {_ELSEWHERE}")


def load_model(model: ModelSettings, dtype: "dtype", *, trust_remote_code: bool) -> "PreTrainedModel":
    """Load a model onto the CPU, in evaluation mode.

    Raises:
        ConfigError: torch or transformers is missing, the checkpoint cannot be read, is of the wrong architecture,
            or lacks weights that would be made up at random.
    """
    try:
        import torch  # noqa: F401 (transformers imports without it, and fails later)
        from transformers import AutoModelForSequenceClassification
        from transformers.modeling_layers import GenericForSequenceClassification
    except ImportError:
        raise ConfigError(_INSTALL) from None
    name = model.checkpoint_path or model.model_name
    if Path(name, ".metadata").exists():
        raise ConfigError(f"{name} is a distributed checkpoint: convert it with NeMo RL's convert_dcp_to_hf.py first")
    config = load_config(model, trust_remote_code=trust_remote_code)
    check_config(model.model_name, config)
    try:
        loaded, report = AutoModelForSequenceClassification.from_pretrained(
            name,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused below by name
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"the weights of {name} cannot be loaded: {error}") from None
    if not isinstance(loaded, GenericForSequenceClassification):
        raise ConfigError(f"{name} is {type(loaded).__name__}: {_ELSEWHERE}")
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise ConfigError(f"{name} lacks weights, which would be random: {', '.join(absent[:5])}")
    return loaded.eval()
