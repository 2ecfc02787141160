"""What a report is made of. This module imports pandas: import it inside functions, not at start-up."""

from typing import TYPE_CHECKING

from rollmill._version import __version__
from rollmill.artifacts.manifest import Manifest
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import REWARD
from rollmill.metrics.summary import summarize

if TYPE_CHECKING:
    from rollmill.artifacts.columns import RunColumns


def summarize_agents(
    columns: "RunColumns", manifest: Manifest | None = None, *, seed: int = 0
) -> dict[str, JsonObject]:
    """Summarize each agent of a run by the score that its environment chose.

    Args:
        columns: the numbers of the run's rollouts.
        manifest: of the run; the score is the reward without one.
        seed: of the bootstrap and of the sample of points.

    Returns:
        Summaries by name, also of agents with no finished rollout yet; the name is empty for rollouts that name none.
    """
    frame = columns.frame
    if REWARD not in frame:  # no rollout is finished yet
        frame = frame.assign(**{REWARD: float("nan")})
    agents = frame["agent"].astype(object).where(frame["agent"].notna(), "")
    names = sorted({*map(str, agents.unique()), *columns.expected, *columns.failures_by_agent})
    summaries = {}
    for name in names:
        failures = columns.failures_by_agent.get(name)
        score_field = manifest.score_field(name) if manifest else REWARD
        summaries[name] = summarize(
            frame[agents == name],
            score_field=score_field if score_field in frame else REWARD,
            expected=columns.expected.get(name),
            failures=failures.to_json() if failures else None,
            seed=seed,
        )
    return summaries


def made_of(columns: "RunColumns", manifest: Manifest | None, *, seed: int = 0) -> JsonObject:
    """Say how a report was made, for its last section."""
    made: JsonObject = {"rollmill_version": __version__, "rollouts_file": columns.path.name, "seed": seed}
    if manifest is None:
        return made
    verifiers = ", ".join(f"{agent}: {used.name} {used.version}" for agent, used in manifest.verifiers.items())
    return {
        "run_id": manifest.run_id,
        "state": manifest.state,
        "begun_at": manifest.created_at.isoformat(timespec="seconds"),
        "collected_with": manifest.rollmill_version,
        **({"verifiers": verifiers} if verifiers else {}),
        **made,
    }
