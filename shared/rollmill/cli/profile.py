import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rollmill.artifacts.files import RunFiles
from rollmill.cli.console import emit, tell
from rollmill.contracts.json import JsonObject
from rollmill.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from rollmill.profiling import Profile, RunTables
    from rollmill.report.text import Line, Style

_LOOKS: Final[dict["Style", str]] = {
    "plain": "",
    "strong": "bold",
    "soft": "dim",
    "bad": "red",
    "good": "green",
    "bar": "blue",
}


def profile(
    rollouts: Annotated[Path, typer.Option(help="The run's rollouts, x.jsonl.")],
    inputs: Annotated[
        Path | None, typer.Option(help="The run's input rows; x_materialized_inputs.jsonl when not given.")
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Profile what is there, also when rollouts are missing.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report, one HTML file, here.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the intervals that are bootstrapped.")] = 0,
) -> None:
    """Compute reward statistics of a run, per task and per agent, and write them beside its rollouts."""
    from rollmill.artifacts.columns import read_columns
    from rollmill.artifacts.manifest import read_manifest
    from rollmill.artifacts.profile_files import write_profile
    from rollmill.artifacts.writer import write_atomically
    from rollmill.profiling import read_tables
    from rollmill.report import made_of, render_report, summarize_agents

    files = RunFiles.at(rollouts)
    source = inputs_of(files, inputs)
    _check_html(html, files, source)
    tables = read_tables(source, files.rollouts)
    result = _profile(tables, allow_partial=allow_partial)
    write_profile(files, result.reward_profile)
    columns = read_columns(files, tables.columns, tables.input_columns)
    manifest = read_manifest(files.manifest)
    agents = summarize_agents(columns, manifest, seed=seed)
    _show(agents)
    done, expected = result.completion["completed_rollouts"], result.completion["expected_rollouts"]
    if done < expected:
        tell(f"partial: {done} of {expected} rollouts are finished")
    tell(f"wrote {files.reward_profiling} and {files.agent_metrics}")
    if html is not None:
        page = render_report(
            manifest.run_id if manifest else files.rollouts.stem,
            agents,
            completion=result.completion,
            rollouts=columns.rows,
            made=made_of(columns, manifest, seed=seed),
        )
        html.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(html, page)
        tell(f"wrote {html}")


def inputs_of(files: RunFiles, given: Path | None) -> Path:
    """Return the file of a run's input rows.

    Raises:
        InputError: none is given, and there is none beside the rollouts.
    """
    if given is None and not (files.inputs.exists() or files.manifest.exists()):
        raise InputError(f"{files.inputs}: no such file; name the run's input rows with --inputs")
    return given or files.inputs


def _check_html(html: Path | None, files: RunFiles, inputs: Path) -> None:
    if html is not None and html.resolve() in {path.resolve() for path in (*files.all(), inputs)}:
        raise InputError(f"{html} is one of the run's own files; write the report elsewhere")


def _profile(tables: "RunTables", *, allow_partial: bool) -> "Profile":
    from rollmill.profiling import Profile

    try:
        return Profile(tables, allow_partial=allow_partial)
    except InputError as error:
        Profile(tables, allow_partial=True)  # raises too, unless missing rollouts were all that was wrong
        raise InputError(f"{error.detail}; use --allow-partial", **error.extensions) from None


def _show(agents: dict[str, JsonObject]) -> None:
    from rich.console import Console

    from rollmill.report.text import describe_agents, plain

    console = Console(file=sys.stdout, highlight=False)
    lines = describe_agents(agents, ascii_only=not _can_show("▁█·", sys.stdout.encoding))
    if console.is_terminal:
        _show_styled(console, lines)
    elif lines:
        emit(plain(lines))


def _show_styled(console: "Console", lines: "Sequence[Line]") -> None:
    from rich.text import Text

    for line in lines:
        text = Text.assemble(*((span.text, _LOOKS[span.style]) for span in line))  # text: names are no markup
        console.print(text, soft_wrap=True)


def _can_show(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
