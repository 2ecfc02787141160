import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.artifacts.files import RunFiles
from rollmill.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from rollmill.profiling import AgentSummary, Profile, RunTables

_BINS = 10
_BARS = "▁▂▃▄▅▆▇█"
_NO_BAR = "·"
_HEADER = ("agent", "tasks", "rollouts", "reward", "std", "min", "max", "complete")


def profile(
    rollouts: Annotated[Path, typer.Option(help="The run's rollouts, x.jsonl.")],
    inputs: Annotated[
        Path | None, typer.Option(help="The run's input rows; x_materialized_inputs.jsonl when not given.")
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Profile what is there, also when rollouts are missing.")
    ] = False,
) -> None:
    """Compute reward statistics of a run, per task and per agent, and write them beside its rollouts."""
    from rollmill.artifacts.profile_files import write_profile
    from rollmill.profiling import read_tables

    files = RunFiles.at(rollouts)
    tables = read_tables(_inputs(files, inputs), files.rollouts)
    result = _profile(tables, allow_partial=allow_partial)
    write_profile(files, result.reward_profile)
    _show(result)
    done, expected = result.completion["completed_rollouts"], result.completion["expected_rollouts"]
    if done < expected:
        typer.echo(f"partial: {done} of {expected} rollouts are finished", err=True)
    typer.echo(f"wrote {files.reward_profiling} and {files.agent_metrics}", err=True)


def _inputs(files: RunFiles, given: Path | None) -> Path:
    if given is None and not (files.inputs.exists() or files.manifest.exists()):
        raise InputError(f"{files.inputs}: no such file; name the run's input rows with --inputs")
    return given or files.inputs


def _profile(tables: "RunTables", *, allow_partial: bool) -> "Profile":
    from rollmill.profiling import Profile

    try:
        return Profile(tables, allow_partial=allow_partial)
    except InputError as error:
        Profile(tables, allow_partial=True)  # raises too, unless missing rollouts were all that was wrong
        raise InputError(f"{error.detail}; use --allow-partial", **error.extensions) from None


def _show(result: "Profile") -> None:
    from rich.console import Console

    console = Console(file=sys.stdout)
    if console.is_terminal:
        _show_table(console, result)
    else:
        typer.echo("\n".join(_aligned([_HEADER, *map(_cells, result.by_agent)])))


def _show_table(console: "Console", result: "Profile") -> None:
    from rich.table import Table
    from rich.text import Text

    low, high = _span(result.by_agent)
    table = Table()
    for name in _HEADER:
        table.add_column(name, justify="left" if name == "agent" else "right", no_wrap=True)
    table.add_column(f"task means {low:g} to {high:g}", no_wrap=True)
    for agent in result.by_agent:
        table.add_row(*map(Text, _cells(agent)), _bars(agent.task_means, low, high))  # text: names are no markup
    console.print(table)


def _cells(agent: "AgentSummary") -> tuple[str, ...]:
    from rollmill.metrics.groups import percent

    numbers = (agent.mean, agent.std, agent.minimum, agent.maximum)
    return (
        agent.agent or "-",
        str(agent.tasks),
        str(agent.rollouts),
        *("-" if number is None else f"{number:.4g}" for number in numbers),
        f"{percent(agent.rollouts, agent.expected):.1f}%",
    )


def _aligned(lines: Iterable[tuple[str, ...]]) -> list[str]:
    """Pad the cells of a column to one width: the first column to the left, numbers to the right."""
    lines = list(lines)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in lines]


def _span(agents: "list[AgentSummary]") -> tuple[float, float]:
    """Return the range of the bars, the same for all agents: 0 to 1, or wider when rewards are."""
    means = [mean for agent in agents for mean in agent.task_means]
    return min([0.0, *means]), max([1.0, *means])


def _bars(values: list[float], low: float, high: float) -> str:
    import numpy as np

    counts, _ = np.histogram(values, bins=_BINS, range=(low, high))
    most = max(int(counts.max()), 1)
    return "".join(_BARS[(count * len(_BARS) - 1) // most] if count else _NO_BAR for count in counts.tolist())
