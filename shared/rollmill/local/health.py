"""Asks the service of this container whether it is ready: `python -m rollmill.local.health`.

It runs again and again in every container, so it loads next to nothing: importing `http.client` alone takes longer than
the whole of it.
"""

import os
import socket
from typing import Final

TIMEOUT_SECONDS: Final = 8.0
DEFAULT_PORT: Final = "8000"
"""As in the image."""


def main() -> None:
    """Ask the service at `ROLLMILL_PORT` of the loopback interface.

    Raises:
        SystemExit: it is not ready; says why.
    """
    port = os.environ.get("ROLLMILL_PORT", DEFAULT_PORT)
    try:
        answer = _ask(int(port))
    except OSError as error:
        raise SystemExit(f"nothing answers at port {port}: {error}") from None
    head, _, body = answer.partition("\r\n\r\n")
    if head.split(" ")[1:2] != ["204"]:
        raise SystemExit(f"not ready: {body or head or 'an empty answer'}")


def _ask(port: int) -> str:
    """Return the whole answer to `GET /readyz`; `Connection: close` makes its end that of the stream."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        parts = iter(lambda: connection.recv(4096), b"")
        return b"".join(parts).decode("utf-8", "replace")


if __name__ == "__main__":
    main()
