from collections.abc import Callable
from typing import Annotated, Final

import typer

from rollmill._version import __version__
from rollmill.cli.aggregate import aggregate
from rollmill.cli.collect import collect
from rollmill.cli.compare import compare
from rollmill.cli.console import LOG_LEVELS, checked_level, emit, guarded
from rollmill.cli.down import down
from rollmill.cli.export import export
from rollmill.cli.init import init
from rollmill.cli.list import list_services
from rollmill.cli.profile import profile
from rollmill.cli.render import render
from rollmill.cli.reverify import reverify
from rollmill.cli.select import select
from rollmill.cli.serve import serve
from rollmill.cli.status import status
from rollmill.cli.token import token
from rollmill.cli.up import up
from rollmill.cli.validate import validate

COMMANDS: Final[tuple[tuple[str, Callable[..., None]], ...]] = (
    ("up", up),
    ("status", status),
    ("down", down),
    ("serve", serve),
    ("collect", collect),
    ("profile", profile),
    ("compare", compare),
    ("select", select),
    ("export", export),
    ("aggregate", aggregate),
    ("reverify", reverify),
    ("render", render),
    ("init", init),
    ("validate", validate),
    ("list", list_services),
    ("token", token),
)


def build_cli() -> typer.Typer:
    """Make the command line. What a command needs beyond its options is imported when it runs."""
    cli = typer.Typer(
        name="rollmill",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    cli.callback()(guarded(_rollmill))
    for name, command in COMMANDS:
        cli.command(name)(guarded(command))
    return cli


def _rollmill(
    log_level: Annotated[
        str, typer.Option(envvar="ROLLMILL_LOG_LEVEL", help=f"One of {', '.join(LOG_LEVELS)}, for this command.")
    ] = "WARNING",
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=lambda asked: _version(asked))] = False,
) -> None:
    """Turn tasks into graded rollouts, and profile their rewards."""
    from rollmill.observability.logging import configure_logging

    configure_logging(checked_level(log_level), json=False)


def _version(asked: bool) -> None:
    """Show the version and exit."""
    if asked:
        emit(__version__)
        raise typer.Exit
