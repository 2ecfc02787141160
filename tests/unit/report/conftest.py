import pytest

from rollmill.contracts.json import JsonObject


def _estimate(value: float, method: str = "bootstrap") -> JsonObject:
    return {
        "value": value,
        "standard_error": 0.05,
        "low": max(0.0, value - 0.1),
        "high": min(1.0, value + 0.1),
        "method": method,
        "tasks_used": 12,
        "tasks_total": 12,
        "rollouts": 96,
    }


def _task(number: int, mean: float) -> JsonObject:
    return {
        "task": number,
        "mean_reward": mean,
        "num_rollouts": 8,
        "low": max(0.0, mean - 0.3),
        "high": min(1.0, mean + 0.3),
        "rollouts": [f"{number}:{index}" for index in range(8)],
    }


@pytest.fixture
def summary() -> JsonObject:
    """One agent's summary, as `rollmill.metrics.summary.summarize` gives it: 12 tasks with 8 rollouts each."""
    curve: list[JsonObject] = [
        {"k": k, "pass@k": _estimate(up), "pass^k": _estimate(down), "best@k": _estimate(up)}
        for k, up, down in ((1, 0.5, 0.5), (2, 0.7, 0.4), (4, 0.85, 0.3), (8, 0.95, 0.2))
    ]
    return {
        "tasks": 12,
        "rollouts": 96,
        "expected_rollouts": 96,
        "score_field": "reward",
        "binary": True,
        "correct_at": 1.0,
        "estimates": {
            "mean_reward": _estimate(0.5, "analytic"),
            **{f"pass@{point['k']}": point["pass@k"] for point in curve},
            **{f"pass^{point['k']}": point["pass^k"] for point in curve},
            **{f"best@{point['k']}": point["best@k"] for point in curve},
            "majority@8": _estimate(0.6),
            "no_answer": _estimate(0.02),
            "truncation_rate": _estimate(0.0),
            "tool_errors_per_rollout": _estimate(0.0),
            "zero_variance_share": _estimate(0.25),
            "effective_batch_share": _estimate(0.75),
        },
        "curve": curve,
        "solve_rate": {
            "none": 1,
            "some": 9,
            "all": 2,
            "bins": [0, 1, 2, 1, 0, 3, 1, 0, 1, 0],
            "edges": [round(0.1 * edge, 1) for edge in range(11)],
        },
        "length": {
            "pearson": -0.25,
            "spearman": -0.2,
            "mean_output_tokens_right": 210.0,
            "mean_output_tokens_wrong": 330.0,
            "rollouts": 96,
            "points": [[100.0 + 5 * at, float(at % 2), at // 8, at % 8] for at in range(96)],
        },
        "percentiles": {
            "output_tokens": {"p50": 337.5, "p90": 525.0, "p99": 570.0},
            "seconds": {"p50": 1.5, "p90": 4.0, "p99": 9.0},
        },
        "hardest": [_task(number, number / 10) for number in range(10)],
        "most_uncertain": [_task(number, 0.5) for number in (5, 4, 6, 3, 7)],
        "failures": {"by_class": {"upstream-timeout": 3, "invalid-answer": 1}, "by_boundary": {"model": 3, "agent": 1}},
    }
