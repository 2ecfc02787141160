"""`rollmill select`: from the profile of a run to the tasks of the next one."""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from rollmill.artifacts.files import RunFiles
from rollmill.cli.console import emit, tell
from rollmill.cli.profile import inputs_of
from rollmill.contracts.rows import REWARD, TASK_INDEX
from rollmill.errors import ConflictError, InputError


def select(
    rollouts: Annotated[Path, typer.Option(help="The run's rollouts, x.jsonl.")],
    expression: Annotated[
        str, typer.Option("--filter", help="Which tasks, e.g. '0.1 < mean_reward < 0.9 and num_rollouts >= 4'.")
    ],
    output: Annotated[Path, typer.Option(help="Where the chosen tasks go, as JSONL.")],
    inputs: Annotated[
        Path | None, typer.Option(help="The run's input rows; x_materialized_inputs.jsonl when not given.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
) -> None:
    """Write the tasks whose rollouts a filter chooses as a new task file."""
    from rollmill.artifacts.columns import read_columns
    from rollmill.artifacts.task_rows import write_task_rows
    from rollmill.metrics.selection import choose_tasks, parse_filter

    chosen_by = parse_filter(expression)
    files = RunFiles.at(rollouts)
    source = inputs_of(files, inputs)
    _check_output(output, files, source, overwrite=overwrite)
    frame = read_columns(files).frame
    chosen = choose_tasks(frame, chosen_by, score_field=_score_field(files, frame.columns))
    write_task_rows(source, output, chosen)
    tell(f"{len(chosen)} of {frame[TASK_INDEX].nunique()} tasks chosen")
    if not chosen:
        tell("warning: the filter chooses no task")
    emit(str(output))


def _score_field(files: RunFiles, fields: Collection[str]) -> str:
    """Return the score that all agents of the run share, else the reward."""
    from rollmill.artifacts.manifest import read_manifest

    manifest = read_manifest(files.manifest)
    scores = {manifest.score_field(agent) for agent in manifest.agents} if manifest else set()
    return next(iter(scores)) if len(scores) == 1 and scores <= set(fields) else REWARD


def _check_output(output: Path, files: RunFiles, inputs: Path, *, overwrite: bool) -> None:
    if output.resolve() in {path.resolve() for path in (*files.all(), inputs)}:
        raise InputError(f"{output} is one of the run's own files; choose another --output")
    if output.exists() and not overwrite:
        raise ConflictError(f"{output} exists; choose another --output, or replace it with --overwrite")
