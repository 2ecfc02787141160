"""How commands reach the services: which head, and with which token."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from rollmill.config.tokens import Tokens, make_token_file
from rollmill.contracts.json import JsonObject
from rollmill.errors import ConfigError
from rollmill.local.ports import DEFAULT_HEAD_URL
from rollmill.local.state import StateDir


class Connection(NamedTuple):
    """The head of a deployment and the token that its services ask for."""

    head_url: str
    token: str
    """Empty when none is known."""
    ca_file: Path | None = None
    """Authorities that certificates are checked against; None for the system's."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate, its key, and the authorities that clients trust, as absolute paths; see `ServiceSettings`."""

    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def settings(self) -> JsonObject:
        """Return the settings of a service that uses them."""
        files = {"tls_cert_file": self.cert, "tls_key_file": self.key, "tls_ca_file": self.ca}
        return {name: str(path) if path else None for name, path in files.items()}


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
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        shown = "that" if "@" in url else repr(url)  # what stands before the @ may be a password
        raise ConfigError(f"{shown} is not the URL of a head; write it like {DEFAULT_HEAD_URL}")
    token = tokens_from_environment(env).shown
    if not token and (is_loopback(parts.hostname) or (deployment and url == deployment.head_url)):
        token = state.existing_token() or ""
    return Connection(url, token, tls_from_environment(env).ca)


def deployment_tokens(state: StateDir, environ: Mapping[str, str] | None = None) -> Tokens:
    """Return the tokens that a deployment is started with: those of the environment, else the state folder's own.

    A token file that does not exist yet is made.

    Raises:
        ConfigError: the tokens cannot be used.
    """
    tokens = tokens_from_environment(os.environ if environ is None else environ) or Tokens(file=state.token_path)
    if tokens.file == state.token_path:
        state.token()
    elif tokens.file is not None:
        make_token_file(tokens.file)
    _ = tokens.valid  # tells what is wrong with the file
    return tokens


def tokens_from_environment(environ: Mapping[str, str]) -> Tokens:
    """Return the token of `ROLLMILL_TOKEN`, or those of the file that `ROLLMILL_TOKEN_FILE` names; else none."""
    if token := environ.get("ROLLMILL_TOKEN"):
        return Tokens(token)
    path = environ.get("ROLLMILL_TOKEN_FILE")
    return Tokens(file=Path(path).absolute() if path else None)


def tls_from_environment(environ: Mapping[str, str]) -> TlsFiles:
    """Return the files that `ROLLMILL_TLS_CERT_FILE`, `..._KEY_FILE` and `..._CA_FILE` name.

    Raises:
        ConfigError: a certificate is named without its key, or the other way round.
    """
    named = (environ.get(f"ROLLMILL_TLS_{part}_FILE") for part in ("CERT", "KEY", "CA"))
    files = TlsFiles(*(Path(path).absolute() if path else None for path in named))
    if (files.cert is None) != (files.key is None):
        raise ConfigError("ROLLMILL_TLS_CERT_FILE and ROLLMILL_TLS_KEY_FILE go together: set both, or neither")
    return files


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach a host of this name or address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
