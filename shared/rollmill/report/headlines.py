"""Which numbers of a summary are shown first, and under what name; the page and the terminal show the same."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rollmill.contracts.json import JsonObject
from rollmill.report.numbers import basis, bounds, interval, is_finite, number, percent


@dataclass(frozen=True, slots=True)
class Headline:
    """One number of a summary."""

    name: str
    """Its name among the estimates, such as `pass@8`."""
    label: str
    estimate: JsonObject
    share: bool = False
    """It is written as a percentage."""

    @property
    def value(self) -> str:
        """The number, for people."""
        return (percent if self.share else number)(self.estimate.get("value"))

    @property
    def interval(self) -> str:
        """Its 95 % interval; empty when it has none."""
        return interval(self.estimate, share=self.share)

    @property
    def bounds(self) -> tuple[str, str] | None:
        """Both ends of its 95 % interval; None when it has none."""
        return bounds(self.estimate, share=self.share)

    @property
    def basis(self) -> str:
        """Over how many tasks it is, when not over all; empty else."""
        return basis(self.estimate)


_AT_K: Final = ("pass@", "pass^", "best@", "majority@")
_AFTER: Final = (
    ("no_answer", "no answer", True),
    ("truncation_rate", "truncated", True),
    ("tool_errors_per_rollout", "tool errors per rollout", False),
    ("zero_variance_share", "zero variance", True),
    ("effective_batch_share", "effective batch", True),
)


def headlines(summary: JsonObject) -> list[Headline]:
    """Return the numbers of one agent's summary that are shown first, in order; those that are undefined are not."""
    estimates = summary.get("estimates", {})
    found = [*_rewards(summary, estimates), *_after(estimates)]
    return [headline for headline in found if is_finite(headline.estimate.get("value"))]


def ks(estimates: JsonObject, family: str) -> list[int]:
    """Return the k for which there is an estimate, ascending.

    Args:
        estimates: by name.
        family: name up to the k, such as `pass@`.
    """
    ends = (name.removeprefix(family) for name in estimates if name.startswith(family))
    return sorted(int(end) for end in ends if end.isdecimal())


def _rewards(summary: JsonObject, estimates: JsonObject) -> Iterator[Headline]:
    score = str(summary.get("score_field") or "reward")
    if "mean_reward" in estimates:
        yield Headline("mean_reward", f"mean {score}", estimates["mean_reward"])
    for family in _AT_K:
        if family == "best@" and summary.get("binary"):
            continue  # the same as pass@k
        if (k := _telling(estimates, family)) is not None and not (k == 1 and summary.get("binary")):
            yield Headline(f"{family}{k}", f"{family}{k}", estimates[f"{family}{k}"])


def _telling(estimates: JsonObject, family: str) -> int | None:
    """Return the largest k that all tasks allow, or else the smallest."""
    found = ks(estimates, family)
    whole = [k for k in found if not basis(estimates[f"{family}{k}"])]
    return max(whole) if whole else min(found, default=None)


def _after(estimates: JsonObject) -> Iterator[Headline]:
    for name, label, share in _AFTER:
        quiet = name == "tool_errors_per_rollout" and not estimates.get(name, {}).get("value")
        if name in estimates and not quiet:  # most agents have no tools
            yield Headline(name, label, estimates[name], share)
