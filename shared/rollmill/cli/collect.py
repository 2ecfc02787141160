"""`rollmill collect`: tasks in, graded rollouts out."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from rollmill.export.exporters import ExportSettings, Tracker, open_exporters

Split = Literal["train", "validation", "benchmark"]

_INPUTS = "What to run"
_OUTPUT = "Where to"
_SAMPLING = "Request parameters"
_LIMITS = "Limits"
_BUDGET = "Budget of the whole run"


def collect(  # noqa: PLR0913 (one parameter for each option of the command)
    output: Annotated[Path, typer.Option(help="File for the rollouts; the run's other files lie beside it.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--config",
            help="Topology file. Uses what `rollmill up` started from it, else runs its services inside this process.",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="URL of a head; its services run the rollouts.", rich_help_panel=_INPUTS)
    ] = None,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Run inside this process, whatever is up.", rich_help_panel=_INPUTS)
    ] = False,
    input_file: Annotated[
        Path | None, typer.Option("--input", help="Tasks, one JSON object a line.", rich_help_panel=_INPUTS)
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(help="Datasets of the topology to run when there is no --input.", rich_help_panel=_INPUTS),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Agent of rows that name none.", rich_help_panel=_INPUTS)] = None,
    num_repeats: Annotated[
        str | None,
        typer.Option(help="Rollouts for each task: 4, or '{a: 4, _default: 1}' by agent.", rich_help_panel=_INPUTS),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only so many input lines.", rich_help_panel=_INPUTS)
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            envvar="ROLLMILL_SHARD",
            help="Run one part of the tasks only: 0/4 is the first of four, and goes to x-00000-of-00004.jsonl.",
            rich_help_panel=_INPUTS,
        ),
    ] = None,
    prompt_config: Annotated[
        Path | None, typer.Option(help="YAML with templates that make each row's input.", rich_help_panel=_INPUTS)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that is there.", rich_help_panel=_OUTPUT)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Delete the run that is there.", rich_help_panel=_OUTPUT)
    ] = False,
    aggregate: Annotated[
        bool, typer.Option("--aggregate/--no-aggregate", help="Compute metrics at the end.", rich_help_panel=_OUTPUT)
    ] = True,
    export: Annotated[
        list[Tracker] | None,
        typer.Option(help="Tracker that gets the run at its end, as by `rollmill export`.", rich_help_panel=_OUTPUT),
    ] = None,
    export_rollouts: Annotated[
        bool,
        typer.Option(
            "--export-rollouts/--no-export-rollouts", help="With a table of rollouts.", rich_help_panel=_OUTPUT
        ),
    ] = True,
    temperature: Annotated[float | None, typer.Option(min=0, rich_help_panel=_SAMPLING)] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1, rich_help_panel=_SAMPLING)] = None,
    max_output_tokens: Annotated[int | None, typer.Option(min=1, rich_help_panel=_SAMPLING)] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(help="Further parameter as key=value, the value as JSON or text.", rich_help_panel=_SAMPLING),
    ] = None,
    add_seed: Annotated[
        bool, typer.Option("--add-seed", help="Give each repeat its rollout index as seed.", rich_help_panel=_SAMPLING)
    ] = False,
    concurrency: Annotated[
        int, typer.Option(min=1, max=65_536, help="Most rollouts in flight.", rich_help_panel=_LIMITS)
    ] = 64,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one attempt.", rich_help_panel=_LIMITS)] = 3600,
    max_attempts: Annotated[
        int, typer.Option(min=1, max=100, help="Attempts at one rollout.", rich_help_panel=_LIMITS)
    ] = 3,
    fail_fast_count: Annotated[
        int,
        typer.Option(
            min=0,
            help="Stop after so many attempts that reached no service, when nothing was completed; 0: never.",
            rich_help_panel=_LIMITS,
        ),
    ] = 20,
    fail_fast_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Also stop when this share of the rollouts failed.", rich_help_panel=_LIMITS),
    ] = None,
    max_tokens_total: Annotated[
        int | None, typer.Option(min=1, help="Stop when so many tokens were used.", rich_help_panel=_BUDGET)
    ] = None,
    max_wall: Annotated[
        float | None, typer.Option(min=0.001, help="Stop after so many seconds at work.", rich_help_panel=_BUDGET)
    ] = None,
    max_failures: Annotated[
        int | None, typer.Option(min=1, help="Stop when so many rollouts failed for good.", rich_help_panel=_BUDGET)
    ] = None,
    stop_grace: Annotated[
        float, typer.Option(min=0, help="Seconds for the rollouts in flight then.", rich_help_panel=_BUDGET)
    ] = 60,
) -> None:
    """Run tasks through their agents and write graded rollouts. Ctrl-C stops cleanly; --resume goes on."""
    from rollmill.cli.collecting import Source, run_collection
    from rollmill.cli.export import export_collected
    from rollmill.cli.values import parse_options, parse_params, parse_repeats, shard_output

    options = parse_options(
        agent=agent,
        num_repeats=parse_repeats(num_repeats),
        add_seed=add_seed,
        limit=limit,
        shard=shard or None,
        concurrency=concurrency,
        temperature=temperature,
        top_p=top_p,
        max_output_tokens=max_output_tokens,
        params=parse_params(param or []),
        timeout_seconds=timeout,
        max_attempts=max_attempts,
        fail_fast_count=fail_fast_count,
        fail_fast_share=fail_fast_share,
        aggregate=aggregate,
        max_tokens_total=max_tokens_total,
        max_wall_seconds=max_wall,
        max_failures=max_failures,
        stop_grace_seconds=stop_grace,
    )
    if resume and overwrite:
        raise typer.BadParameter("choose one of --resume and --overwrite")
    if input_file and split:
        raise typer.BadParameter("choose one of --input and --split")
    exporters = open_exporters(export or (), ExportSettings.from_environment(os.environ))
    output = shard_output(output, options)
    source = Source(config=config, head=head, embedded=embedded, input=input_file, split=split)
    status = run_collection(source, output, options, prompt_config, resume=resume, overwrite=overwrite)
    export_collected(output, exporters, rollouts=export_rollouts)
    if status.failed or status.state == "stopped":
        raise typer.Exit(3)
