import sys
from typing import Annotated

import typer


def serve(
    service: Annotated[str, typer.Argument(help="Name of an installed service, or module:factory.")],
    host: Annotated[str, typer.Option(envvar="ROLLMILL_HOST", help="Interface to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="ROLLMILL_PORT", min=0, max=65_535, help="0 picks a free one.")] = 0,
    no_token: Annotated[bool, typer.Option(help="Let every user of this machine call it.")] = False,
) -> None:
    """Run one service in this process until it is asked to stop.

    It is told what it needs through ROLLMILL_SETTINGS_FILE and ROLLMILL_<SETTING> variables. Its token is that of
    `rollmill token` unless ROLLMILL_TOKEN or ROLLMILL_TOKEN_FILE says otherwise.
    """
    from rollmill.local.serving import serve as serve_here
    from rollmill.local.state import StateDir

    token_file = None if no_token else StateDir.default().token_path
    serve_here(service, host=host, port=port, json_logs=not sys.stderr.isatty(), token_file=token_file)
