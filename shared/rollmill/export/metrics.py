from collections.abc import Iterator
from pathlib import Path

from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import read_manifest
from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rows import agent_name
from rollmill.errors import InputError
from rollmill.metrics.numeric import is_number

KEY_METRICS = "key_metrics"

_AGENT_METRICS = "agent_metrics"
_BESIDE_AN_ESTIMATE = ("low", "high", "standard_error", "tasks_used")


def read_metrics(files: RunFiles) -> dict[str, float]:
    """Return the numbers of a run, as trackers name them.

    `{agent}/{metric}` and `key_metrics/{agent}/{metric}` are what `x_aggregate_metrics.json` has, and what
    `x_agent_metrics.json` has besides. Objects inside become paths: `direct: {count: 5}` is `{agent}/direct/count`.
    The estimates are computed from the rollouts: `{agent}/pass@4` with `{agent}/low/pass@4`, `high/`,
    `standard_error/` and `tasks_used/`; an environment's own metric of that name wins.

    Returns:
        Finite numbers, booleans as 0 and 1. Text and lists are left out.

    Raises:
        InputError: the run has no metrics, or one of its files is broken.
    """
    metrics = _from_files(files)
    if files.rollouts.exists():
        for agent, summary in _summaries(files).items():
            _add_estimates(metrics, agent, summary.get("estimates", {}))
    if not metrics:
        raise InputError(f"{files.aggregate_metrics}: no metrics there; `rollmill profile` makes them from rollouts")
    return metrics


def _from_files(files: RunFiles) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for agent, entry in _entries(files.aggregate_metrics):
        metrics.update(_flat(f"{agent}/", entry.get(_AGENT_METRICS)))
        metrics.update(_flat(f"{KEY_METRICS}/{agent}/", entry.get(KEY_METRICS)))
    for agent, entry in _entries(files.agent_metrics):
        for name, value in _flat(f"{agent}/", {key: value for key, value in entry.items() if key != "agent_ref"}):
            metrics.setdefault(name, value)
    return metrics


def _entries(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """Yield the agents of a metrics file with their entries; a file that is not there has none."""
    try:
        entries = loads(path.read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    for entry in entries if isinstance(entries, list) else [entries]:
        agent = agent_name(entry) if isinstance(entry, dict) else None
        if agent is None:
            raise InputError(f"{path}: not a list of metrics by agent")
        yield agent, entry


def _flat(prefix: str, value: JsonValue) -> Iterator[tuple[str, float]]:
    for name, member in value.items() if isinstance(value, dict) else ():
        if isinstance(member, dict):
            yield from _flat(f"{prefix}{name}/", member)
        elif is_number(member):
            yield f"{prefix}{name}", float(member)


def _summaries(files: RunFiles) -> dict[str, JsonObject]:
    from rollmill.artifacts.columns import read_columns  # pandas and pyarrow take longer to load than the rest
    from rollmill.report.summaries import summarize_agents

    return summarize_agents(read_columns(files), read_manifest(files.manifest))


def _add_estimates(metrics: dict[str, float], agent: str, estimates: JsonObject) -> None:
    for name, estimate in estimates.items():
        path = f"{agent}/{name}" if agent else name
        if path in metrics or "value" not in estimate:
            continue
        metrics[path] = float(estimate["value"])
        for beside in _BESIDE_AN_ESTIMATE:
            if beside in estimate:
                metrics[f"{agent}/{beside}/{name}" if agent else f"{beside}/{name}"] = float(estimate[beside])
