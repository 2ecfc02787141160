"""Checks of settings that say where something outside of Rollmill is, and how it is asked."""

import re

from pydantic import SecretStr

_BASE_URL = re.compile(r"https?://[^/\s@?#]+(/[^\s?#]*)?")


def checked_base_url(url: str) -> str:
    """Return a base URL without its last slash.

    Raises:
        ValueError: it is no http(s) URL, or has credentials, a query or a fragment in it.
    """
    if not _BASE_URL.fullmatch(url):
        raise ValueError("must be an http(s) URL without credentials, such as http://localhost:8000/v1")
    return url.rstrip("/")


def checked_api_key(value: SecretStr | None) -> SecretStr | None:
    """Return a key without space around it; None when it is empty.

    Raises:
        ValueError: it cannot stand in a header.
    """
    key = value.get_secret_value().strip() if value else ""
    if not key.isascii() or not key.isprintable():
        raise ValueError("must be printable ASCII on one line")
    return SecretStr(key) if key else None
