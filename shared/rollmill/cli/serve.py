import sys
from typing import Annotated

import typer


def serve(
    service: Annotated[str, typer.Argument(help="Name of an installed service, or module:factory.")],
    host: Annotated[str, typer.Option(envvar="ROLLMILL_HOST", help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="ROLLMILL_PORT", min=0, max=65_535, help="0 picks a free one.")] = 0,
) -> None:
    """Run one service in this process until it is asked to stop.

    It is told what it needs through ROLLMILL_SETTINGS_FILE and ROLLMILL_<SETTING> variables.
    """
    from rollmill.local.serving import serve as serve_here

    serve_here(service, host=host, port=port, json_logs=not sys.stderr.isatty())
