"""`rollmill reverify`: stored rollouts in, graded again, out; no model is asked."""

from pathlib import Path
from typing import Annotated

import typer


def reverify(  # noqa: PLR0913 (one parameter for each option of the command)
    rollouts: Annotated[Path, typer.Option(help="The run's rollouts, x.jsonl.")],
    output: Annotated[Path, typer.Option(help="File for the graded rollouts; the run's other files lie beside it.")],
    inputs: Annotated[
        Path | None, typer.Option(help="The run's input rows; x_materialized_inputs.jsonl when not given.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            help="Topology file. Uses what `rollmill up` started from it, else runs its resources servers in this "
            "process.",
        ),
    ] = None,
    head: Annotated[str | None, typer.Option(help="URL of a head; its resources servers grade.")] = None,
    failed_only: Annotated[
        bool, typer.Option("--failed-only", help="Only rollouts that have a response but whose grading failed.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also where the verifier may need its session; the output's name then begins with unsafe_."
        ),
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was graded already.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete what was graded already.")] = False,
    concurrency: Annotated[int, typer.Option(min=1, max=65_536, help="Most rollouts in flight.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one attempt.")] = 600,
    max_attempts: Annotated[int, typer.Option(min=1, max=100, help="Attempts at one rollout.")] = 3,
) -> None:
    """Grade stored rollouts again with the resources servers of their agents, and say what changed."""
    from rollmill.artifacts.files import RunFiles
    from rollmill.cli.reverifying import run_reverification
    from rollmill.collection.reverification import ReverifyPlan

    if resume and overwrite:
        raise typer.BadParameter("choose one of --resume and --overwrite")
    plan = ReverifyPlan(
        rollouts=rollouts,
        inputs=inputs or RunFiles.at(rollouts).inputs,
        output=output,
        failed_only=failed_only,
        force=force,
        resume=resume,
        overwrite=overwrite,
        concurrency=concurrency,
        timeout_seconds=timeout,
        max_attempts=max_attempts,
    )
    if run_reverification(plan, config, head).failed:
        raise typer.Exit(3)
