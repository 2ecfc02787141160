from rollmill.cli.console import emit


def token() -> None:
    """Print the token that services ask for, and make one first when there is none."""
    from rollmill.local.connection import deployment_token
    from rollmill.local.state import StateDir

    emit(deployment_token(StateDir.default()))
