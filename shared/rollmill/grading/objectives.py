"""Rewards that are made of several objectives, each with a weight and a score of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from pydantic import Field

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonValue
from rollmill.contracts.rollouts import Verdict
from rollmill.errors import ConfigError

_FLAT = 1e-9


class MultiRewardSettings(ServiceSettings):
    """Settings of an environment whose reward has several objectives."""

    reward_weights: dict[str, float] = Field(default_factory=dict)
    """Weights of objectives instead of the environment's own; with 0 an objective is a metric and nothing else."""
    normalise_rewards: bool = False
    """Scale each objective's score from its range to 0..1, and the weights so that their sizes add up to 1."""


@dataclass(frozen=True, slots=True)
class Objective:
    """One thing that a reward is for."""

    weight: float = 1.0
    """Negative for a penalty."""
    lowest: float = 0.0
    highest: float = 1.0
    """The range of its scores, for normalisation; a score beyond an end counts as that end."""

    def __post_init__(self) -> None:
        if not self.lowest < self.highest:
            raise ValueError(f"the range of an objective must not be empty, got {self.lowest} to {self.highest}")

    def scaled(self, score: float) -> float:
        """Return where a score lies in the range, 0 to 1."""
        return (min(max(score, self.lowest), self.highest) - self.lowest) / (self.highest - self.lowest)


class Objectives:
    """Makes one reward of the scores of several objectives.

    Args:
        objectives: each objective, or just its weight, by name.
        settings: change the weights, and ask for normalisation.

    Raises:
        ConfigError: the settings have a weight for an objective that there is not, or leave no weight other than 0.
    """

    def __init__(
        self, objectives: Mapping[str, Objective | float], settings: MultiRewardSettings | None = None
    ) -> None:
        settings = settings or MultiRewardSettings()
        self._objectives = {
            name: given if isinstance(given, Objective) else Objective(given) for name, given in objectives.items()
        }
        if unknown := settings.reward_weights.keys() - objectives.keys():
            known = ", ".join(objectives)
            raise ConfigError(f"reward_weights: no objective {', '.join(sorted(unknown))}; there are: {known}")
        self.weights = {name: o.weight for name, o in self._objectives.items()} | settings.reward_weights
        """The weight of each objective, as it was declared or set."""
        self._normalised = settings.normalise_rewards
        self._size = sum(map(abs, self.weights.values()))
        if not self._size:
            raise ConfigError("reward_weights: at least one objective needs a weight other than 0")

    def verdict(self, scores: Mapping[str, float], details: Mapping[str, JsonValue] | None = None) -> Verdict:
        """Return the weighted sum as the reward, and the scores as they are as its components.

        Raises:
            ValueError: the scores are not those of the objectives, each once.
        """
        if scores.keys() != self._objectives.keys():
            raise ValueError(f"scores of {sorted(scores)}, and the objectives are {sorted(self._objectives)}")
        counted = {name: self._objectives[name].scaled(scores[name]) for name in scores} if self._normalised else scores
        total = sum(weight * counted[name] for name, weight in self.weights.items())
        return Verdict(total / self._size if self._normalised else total, details or {}, dict(scores))


def group_normalised(group: Sequence[Mapping[str, float]], weights: Mapping[str, float]) -> list[float]:
    """Add up the objectives of each rollout of a task after bringing each objective to mean 0 and deviation 1.

    With a plain sum an objective that varies much drowns the others, whatever their weights; here none does. One in
    which all rollouts are equal adds nothing.

    Args:
        group: `reward_components` of the rollouts of one task.
        weights: weight of each objective that counts.

    Returns:
        A number for each rollout, in their order; their mean is 0.

    Raises:
        KeyError: a rollout lacks an objective.

    Source: the reward-decoupled normalization of GDPO, without its second one over the batch.
    """
    totals = [0.0] * len(group)
    for name, weight in weights.items():
        scores = [components[name] for components in group]
        spread = pstdev(scores) if scores else 0.0
        if spread < _FLAT:
            continue
        mean = fmean(scores)
        totals = [total + weight * (score - mean) / spread for total, score in zip(totals, scores, strict=True)]
    return totals
