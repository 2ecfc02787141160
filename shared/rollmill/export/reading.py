"""What trackers get of a run, read from its files. Imports pandas: import it inside functions, not at start-up."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rollmill.artifacts.columns import RunColumns, read_columns
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Manifest, read_manifest
from rollmill.artifacts.row_access import RowFile
from rollmill.contracts import rows
from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.runs import RUN_ID_PATTERN
from rollmill.errors import InputError
from rollmill.export.exporter import ExportedRun
from rollmill.metrics.aggregate import means
from rollmill.metrics.groups import Groups, percent
from rollmill.metrics.numeric import is_number
from rollmill.openai.items import as_object
from rollmill.report.conversation import cut
from rollmill.report.summaries import summarize_agents

NO_AGENT: Final = "no_agent"
"""Stands for the agent of rollouts that name none."""
TEXT_ROOM: Final = 2000
"""Most characters of the input, and of the output, of a rollout in the table."""
_BOUNDS: Final = (("", "value"), ("/lower", "low"), ("/upper", "high"))


class _Aggregated(msgspec.Struct):
    """An entry of `x_aggregate_metrics.json`, as far as it is exported."""

    agent_ref: dict[str, JsonValue]
    agent_metrics: dict[str, JsonValue]
    key_metrics: dict[str, JsonValue]


def read_run(files: RunFiles, *, name: str | None = None, step: int = 0, max_rollouts: int) -> ExportedRun:
    """Read what trackers get of a run, which may still go on.

    Args:
        files: the run's files.
        name: what trackers are to know it by; its run id when not given.
        step: where its metrics are on the horizontal axis.
        max_rollouts: most lines of the table of rollouts; the first rollouts of all tasks come before second ones.

    Raises:
        InputError: a file cannot be read, a line is no rollout, or the name is none.
    """
    manifest = read_manifest(files.manifest)
    known = name or (manifest.run_id if manifest else files.rollouts.stem)
    if not re.fullmatch(RUN_ID_PATTERN, known):
        raise InputError(
            f"{known[:200]!r} cannot be the name of an exported run: up to 128 letters, digits, dots, dashes and "
            "underscores; choose another with --name"
        )
    columns = read_columns(files)
    return ExportedRun(
        name=known,
        state=manifest.state if manifest else "",
        step=step,
        params=_params(manifest) if manifest else {},
        metrics={name: float(value) for name, value in _metrics(files, columns, manifest) if is_number(value)},
        rollouts=list(_rollouts(columns, max_rollouts)),
        notes=tuple(_notes(columns, max_rollouts)),
    )


def _params(manifest: Manifest) -> dict[str, str]:
    """Say what the run is. The manifest holds no secrets, but paths of the machine stay here."""
    params = {
        "run_id": manifest.run_id,
        "rollmill_version": manifest.rollmill_version,
        "created_at": manifest.created_at.isoformat(timespec="seconds"),
        "input": Path(manifest.input_path).name,
        **{f"digest/{name}": digest for name, digest in manifest.digests.model_dump().items()},
        "reverified": manifest.reverified.run_id if manifest.reverified else "",
    }
    for agent, verifier in manifest.verifiers.items():
        params[f"{agent}/verifier"] = f"{verifier.name} {verifier.version}".strip()
        params[f"{agent}/score_field"] = manifest.score_field(agent)
    return {name: value for name, value in params.items() if value}


def _metrics(files: RunFiles, columns: RunColumns, manifest: Manifest | None) -> Iterator[tuple[str, JsonValue]]:
    classic = _classic(columns)
    aggregated = _aggregated(files, manifest)
    done = columns.frame["agent"].value_counts()
    for name, summary in summarize_agents(columns, manifest).items():
        agent = name or NO_AGENT
        found = aggregated.get(name)
        metrics = {**classic.get(name, {}), **(found.agent_metrics if found else {})}
        key_metrics = found.key_metrics if found else means(metrics)
        named = {**metrics, **_estimates(summary), **_completion(summary, int(done.get(name, 0)))}
        yield from ((f"{agent}/{metric}", value) for metric, value in named.items())
        yield from ((f"key_metrics/{agent}/{metric}", value) for metric, value in key_metrics.items())


def _classic(columns: RunColumns) -> dict[str, JsonObject]:
    """Return the statistics over all rollouts of each agent."""
    groups = Groups(columns.table())
    agents = groups.frame[rows.AGENT_REF].astype(object)
    entries = groups.agents(agents.where(agents.notna(), ""))
    return {entry.pop(rows.AGENT_REF)["name"]: entry for entry in entries}


def _aggregated(files: RunFiles, manifest: Manifest | None) -> dict[str, _Aggregated]:
    """Read what the run computed at its end, environments' own metrics among it; nothing if rollouts came later."""
    path = files.aggregate_metrics
    if manifest is None or manifest.state != "finished" or not path.exists():
        return {}
    if path.stat().st_mtime_ns < files.rollouts.stat().st_mtime_ns:
        return {}
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Aggregated])
    except msgspec.DecodeError as error:
        raise InputError(f"{path}: no aggregate metrics: {error}") from None
    return {rows.agent_name({rows.AGENT_REF: entry.agent_ref}) or "": entry for entry in entries}


def _estimates(summary: JsonObject) -> JsonObject:
    return {
        f"{name}{end}": estimate[member]
        for name, estimate in summary["estimates"].items()
        for end, member in _BOUNDS
        if member in estimate
    }


def _completion(summary: JsonObject, done: int) -> JsonObject:
    counts = {
        "completion/completed_rollouts": done,
        "completion/failed_attempts": sum(summary["failures"]["by_class"].values()),
    }
    expected = summary.get("expected_rollouts")
    if not expected:
        return counts
    return {**counts, "completion/expected_rollouts": expected, "completion/percent": percent(done, expected)}


def _rollouts(columns: RunColumns, most: int) -> Iterator[Sequence[JsonValue]]:
    found = columns.columns
    chosen = np.lexsort((found.tasks, found.rollouts))[:most]
    with RowFile(columns.path) as file:
        for place in sorted(chosen.tolist(), key=lambda at: (found.tasks[at], found.rollouts[at])):
            yield _line(file.at(int(found.offsets[place])))


def _line(row: rows.Row) -> Sequence[JsonValue]:
    key, response = rows.row_key(row), as_object(row.get(rows.RESPONSE))
    reward = row.get(rows.REWARD)
    return (
        rows.agent_name(row) or NO_AGENT,
        key.task,
        key.rollout,
        reward if is_number(reward) else None,
        response.get("incomplete_details") is not None,
        as_object(row.get(rows.TIMING)).get("seconds"),
        _shortened(_request_text(row)),
        _shortened(rows.answer_text(response)),
    )


def _request_text(row: rows.Row) -> str:
    asked = as_object(row.get(rows.PARAMS)).get("input")
    items = asked if isinstance(asked, list) else [{"content": asked}]
    return "\n".join(filter(None, (rows.content_text(as_object(item).get("content")) for item in items)))


def _shortened(text: str) -> str:
    start, left_out, end = cut(text, TEXT_ROOM)
    return f"{start}\n… {left_out} characters left out …\n{end}" if left_out > 0 else text


def _notes(columns: RunColumns, most: int) -> Iterator[str]:
    if 0 < most < len(columns):
        yield f"the table has {most} of {len(columns)} rollouts"
    if refused := len(columns.columns.refused):
        yield f"{refused} rollouts were left out: their reward is not a finite number"
