"""From a model's outputs to a reward. Pure arithmetic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Literal

from rollmill.errors import ConfigError
from rollmill_services.resources.reward_model.settings import ScoreSettings

Reduce = Literal["mean", "min", "mean_minus_k_std"]


@dataclass(frozen=True, slots=True)
class Score:
    """What one model says about one conversation."""

    reward: float
    raw: float
    """The chosen output, or the weighted sum of several, before anything else."""
    heads: dict[str, float]
    """Every output by its label, when there are several."""


@dataclass(frozen=True, slots=True)
class Head:
    """Reads the reward from a model's outputs.

    Raises:
        ConfigError: the outputs do not fit the settings: several and no choice, or the wrong number of weights.
    """

    settings: ScoreSettings
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        count, chosen = len(self.labels), self.settings
        if chosen.weights is not None and len(chosen.weights) != count:
            raise ConfigError(f"score.weights has {len(chosen.weights)} values, the model has {count} outputs")
        if chosen.head is not None and chosen.head >= count:
            raise ConfigError(f"score.head is {chosen.head}, the model has outputs 0 to {count - 1}")
        if count > 1 and chosen.head is None and chosen.weights is None:
            names = ", ".join(self.labels[:20])
            raise ConfigError(f"the model has {count} outputs ({names}): choose with score.head or score.weights")

    def score(self, outputs: Sequence[float]) -> Score:
        """Return the score of one conversation from its finite outputs."""
        chosen = self.settings
        weights = chosen.weights
        raw = (
            outputs[chosen.head or 0]
            if weights is None
            else math.fsum(w * v for w, v in zip(weights, outputs, strict=True))
        )
        value = sigmoid(raw) if chosen.activation == "sigmoid" else raw
        reward = value * chosen.scale + chosen.shift
        if chosen.clip is not None:
            reward = min(max(reward, chosen.clip[0]), chosen.clip[1])
        heads = dict(zip(self.labels, outputs, strict=True)) if len(self.labels) > 1 else {}
        return Score(reward, raw, heads)


def sigmoid(value: float) -> float:
    """Return the logistic function, without overflow."""
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))


def reduced(rewards: Sequence[float], how: Reduce, k: float) -> float:
    """Return one reward for an ensemble's.

    Source: Coste et al. 2023, arXiv:2310.02743: mean, worst case, and mean less `k` standard deviations.
    """
    if how == "min":
        return min(rewards)
    return fmean(rewards) - (k * pstdev(rewards) if how == "mean_minus_k_std" else 0.0)
