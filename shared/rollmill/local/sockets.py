"""Listening sockets: bound and listening before anybody is told of them, so that no call comes too early."""

import errno
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from rollmill.errors import ConfigError

BACKLOG: Final = 4096
_OUTSIDE: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation: asked of the routing table, never sent to."""


def listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """Bind a TCP socket and listen on it.

    Args:
        host: name or address of an interface of this machine.
        port: 0 lets the system choose a free one.
        option: the option that changes the port, for error messages.

    Raises:
        ConfigError: the address cannot be used; says the fix.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {host!r}: {error.strerror}; choose another --host") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_cannot_bind(error, host, port, option)) from None
    return listener


def bound_address(listener: socket.socket) -> tuple[str, int]:
    """Return the address and the port that a socket is bound to."""
    name = listener.getsockname()
    return str(name[0]), int(name[1])


def base_url(host: str, port: int, *, head_url: str = "", tls: bool = False) -> str:
    """Return the URL under which others reach a socket that is bound to this host; `tls` when HTTPS is spoken there.

    A socket that listens on all interfaces is reached at the address from which this machine reaches the head, or
    else the outside.
    """
    if host in ("", "0.0.0.0", "::"):
        host = _own_address(urlsplit(head_url).hostname if head_url else None, v6=host == "::")
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _own_address(target: str | None, *, v6: bool) -> str:
    for peer in filter(None, (target, *(reversed(_OUTSIDE) if v6 else _OUTSIDE))):
        with suppress(OSError):
            family, kind, _, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # of a datagram socket: chooses a route, sends nothing
                return str(ip_address(probe.getsockname()[0].partition("%")[0]))
    return "::1" if v6 else "127.0.0.1"


def _cannot_bind(error: OSError, host: str, port: int, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use; stop what uses it, or choose another with {option} (0: a free one)"
    if error.errno == errno.EACCES:
        return f"port {port} of {host} needs more rights; choose one above 1023 with {option}"
    return f"cannot listen on port {port} of {host}: {error.strerror}; choose another --host"
