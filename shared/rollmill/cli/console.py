"""What all commands share: where their words go, and what becomes of their errors."""

import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

import typer

from rollmill.contracts.json import JsonValue
from rollmill.errors import RollmillError

DEBUG_VARIABLE: Final = "ROLLMILL_DEBUG"
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def emit(text: str) -> None:
    """Write a line of the command's result, to stdout."""
    typer.echo(text)


def emit_json(value: JsonValue) -> None:
    """Write the command's result as indented JSON, to stdout."""
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def tell(text: str) -> None:
    """Say something that is not the command's result, on stderr."""
    typer.echo(text, err=True)


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lay out text in columns; control characters are written as escapes."""
    from rollmill.observability.logging import escape_control

    cells = [[escape_control(cell) for cell in line] for line in (header, *lines)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    padded = (zip(line, widths, strict=True) for line in cells)
    return "\n".join("  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded)


def checked_level(level: str) -> str:
    """Return a log level in capitals; one that does not exist is wrong usage."""
    if level.upper() not in LOG_LEVELS:
        raise typer.BadParameter(f"{level!r} is not one of {', '.join(LOG_LEVELS)}", param_hint="--log-level")
    return level.upper()


def guarded(command: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Turn errors of a command into one line on stderr and exit code 1; `ROLLMILL_DEBUG=1` shows the traceback too."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except KeyboardInterrupt:
            tell("interrupted")
        except BrokenPipeError:
            # Whoever read the result has enough. Python must not fail again when it flushes stdout at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except Exception as error:
            if os.environ.get(DEBUG_VARIABLE):
                tell(traceback.format_exc().rstrip())
            tell(f"error: {_detail(error)}")
        raise typer.Exit(1)

    return run


def _detail(error: Exception) -> str:
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, RollmillError):
        return error.detail
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error} ({DEBUG_VARIABLE}=1 shows where)"
