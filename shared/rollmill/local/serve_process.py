"""The process of one service that `up` starts: `python -m rollmill.local.serve_process weather --fd 5`.

What it is told in secret comes from its settings file, which only the environment names.
"""

import argparse
import gc
import os
import signal
import socket
import threading

from rollmill.errors import RollmillError


def main() -> None:
    """Serve what the arguments name."""
    parser = argparse.ArgumentParser(prog="rollmill.local.serve_process")
    parser.add_argument("use", help="entry-point name, or module:attribute")
    parser.add_argument("--fd", type=int, required=True, help="a listening socket")
    parser.add_argument("--with-parent", action="store_true", help="stop when standard input ends")
    arguments = parser.parse_args()
    run(arguments.use, listener=arguments.fd, with_parent=arguments.with_parent)


def run(use: str, *, listener: int, with_parent: bool) -> None:
    """Serve until asked to stop; a service that cannot start says why in its log.

    Args:
        use: entry-point name, or `module:attribute`.
        listener: file descriptor of a listening socket.
        with_parent: stop when standard input ends.

    Raises:
        SystemExit: always, with 0 when it was asked to stop.
    """
    gc.disable()  # imports make much and drop little: `serve` enables it again once they are done
    if with_parent:
        threading.Thread(target=_stop_at_end_of_input, daemon=True).start()
    try:
        from rollmill.local.serving import serve

        serve(use, listener=socket.socket(fileno=listener))
    except RollmillError as error:
        _report(error)
        raise SystemExit(1) from None


def _stop_at_end_of_input() -> None:
    """Wait until the process that holds the other end of the pipe is gone, however it ended."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _report(error: RollmillError) -> None:
    import structlog

    from rollmill.observability.logging import configure_logging

    configure_logging("INFO", json=True)
    structlog.get_logger().error("service_failed", detail=error.detail)


if __name__ == "__main__":
    main()
