from pathlib import Path
from typing import Annotated

import typer

from rollmill.cli.console import emit, tell


def token(
    file: Annotated[Path | None, typer.Option(help="Token file; else that of the environment or this folder.")] = None,
    init: Annotated[bool, typer.Option("--init", help="Only see that the file exists; print nothing of it.")] = False,
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Put a new token first; the present one stays valid until the next time.")
    ] = False,
) -> None:
    """Print the token that services ask for, and make one first when there is none.

    Running services notice a new token within a second.
    """
    from rollmill.config.tokens import Tokens, make_token_file, rotate_token_file
    from rollmill.errors import ConfigError
    from rollmill.local.connection import deployment_tokens
    from rollmill.local.state import StateDir

    if file is None:
        tokens = deployment_tokens(StateDir.default())
    elif init or rotate or file.exists():
        make_token_file(file)
        tokens = Tokens(file=file.absolute())
        _ = tokens.valid
    else:
        raise ConfigError(f"{file} does not exist; make it with: rollmill token --init --file {file}")
    if not (init or rotate):
        emit(tokens.shown)
        return
    if tokens.file is None:
        raise ConfigError("the token is that of ROLLMILL_TOKEN; name a file with ROLLMILL_TOKEN_FILE or --file instead")
    if rotate:
        rotate_token_file(tokens.file)
        tell(f"{tokens.file}: a new token is first; the former one is valid until the next --rotate")
    else:
        tell(f"{tokens.file} has the token")
