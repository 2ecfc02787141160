from collections.abc import Sequence
from statistics import StatisticsError, correlation, fmean, pstdev

PREFIX = "reward_model_env"


def reward_metrics(rewards: Sequence[float]) -> dict[str, float]:
    """Return NeMo RL's five metrics; only `num_samples` when there are no rewards.

    The standard deviation is the population's, so that one sample gives 0 and not NaN.
    """
    metrics: dict[str, float] = {f"{PREFIX}/num_samples": len(rewards)}
    if rewards:
        metrics |= {
            f"{PREFIX}/mean_reward": fmean(rewards),
            f"{PREFIX}/std_reward": pstdev(rewards),
            f"{PREFIX}/min_reward": min(rewards),
            f"{PREFIX}/max_reward": max(rewards),
        }
    return metrics


def length_correlation(rewards: Sequence[float], num_tokens: Sequence[float]) -> float | None:
    """Return Pearson's correlation of rewards and lengths; None where it is not defined.

    A reward model that likes length for its own sake shows here first.
    """
    try:
        return correlation(rewards, num_tokens)
    except StatisticsError:
        return None
