"""How commands reach the services: which head, and with which token."""

import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rollmill.errors import ConfigError
from rollmill.local.ports import DEFAULT_HEAD_URL
from rollmill.local.state import StateDir


class Connection(NamedTuple):
    """The head of a deployment and the token that its services ask for."""

    head_url: str
    token: str
    """Empty when none is known."""


def find_connection(
    head_url: str | None = None, *, state: StateDir | None = None, environ: Mapping[str, str] | None = None
) -> Connection:
    """Find the deployment that a command is about.

    The head is the one given, else that of `ROLLMILL_HEAD_URL`, else what `up` started here, else the default port.
    The token is that of `ROLLMILL_TOKEN` or `ROLLMILL_TOKEN_FILE`, else the state folder's own; the latter is shown
    only to services of this machine or of the deployment in the folder.

    Raises:
        ConfigError: the URL is not one, or the token cannot be used.
    """
    env = os.environ if environ is None else environ
    state = state or StateDir.default(env)
    deployment = state.load()
    known = deployment.head_url if deployment else DEFAULT_HEAD_URL
    url = (head_url or env.get("ROLLMILL_HEAD_URL") or known).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not the URL of a head; write it like {DEFAULT_HEAD_URL}")
    token = token_from_environment(env)
    if not token and (is_loopback(parts.hostname) or (deployment and url == deployment.head_url)):
        token = state.existing_token() or ""
    return Connection(url, token)


def deployment_token(state: StateDir, environ: Mapping[str, str] | None = None) -> str:
    """Return the token that a deployment is started with: that of the environment, else the state folder's own.

    Raises:
        ConfigError: the token cannot be used.
    """
    return token_from_environment(os.environ if environ is None else environ) or state.token()


def token_from_environment(environ: Mapping[str, str]) -> str:
    """Return the token of `ROLLMILL_TOKEN`, or of the file that `ROLLMILL_TOKEN_FILE` names; else nothing.

    Raises:
        ConfigError: the file cannot be read.
    """
    if token := environ.get("ROLLMILL_TOKEN"):
        return token
    path = environ.get("ROLLMILL_TOKEN_FILE")
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"ROLLMILL_TOKEN_FILE={path}: {error.strerror}") from None


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a host of this name or address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
