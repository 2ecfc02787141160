"""The command line: one module per command. Results go to stdout, everything else to stderr."""


def main() -> None:
    """Run the command that the arguments of this process name."""
    from rollmill.cli.main import build_cli

    build_cli()()
