"""What can go wrong with an engine, as errors that say what to do and never show the api key."""

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import aiohttp

from rollmill.client.os_reason import os_reason
from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.errors import (
    ConnectError,
    ConnectionLostError,
    OverloadedError,
    RollmillError,
    UpstreamError,
    UpstreamTimeoutError,
)
from rollmill.openai.items import as_object

_DETAIL_LIMIT = 500
_EXCERPT_LIMIT = 200
_DEFAULT_RETRY_AFTER = 1.0
_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_SPACES = re.compile(r"\s+")
_HINTS = {
    404: "; check that base_url ends with the API's version (often /v1) and that the model exists",
    413: "; the request is too large for the engine",
}


class Faults:
    """Makes the errors of one engine.

    Args:
        service: name of this model service.
        host: host and port of the engine, as people know it.
        secret: the api key; it is cut out of every text.
    """

    def __init__(self, *, service: str, host: str, secret: str = "") -> None:
        self._service = service
        self._host = host
        self._secret = secret

    def of_status(self, status: int, headers: Mapping[str, str], body: bytes, *, now: float) -> RollmillError:
        """Return the error for an HTTP status other than 200.

        Args:
            status: as answered.
            headers: as answered, `Retry-After` is read.
            body: as answered.
            now: Unix time in seconds, for a `Retry-After` that is a date.
        """
        problem = _engine_error(body)
        kind = problem.get("code") or problem.get("type")
        if status in (401, 403):
            return self._upstream(f"refused with {status}: check api_key", status=status, retryable=False)
        message = self._message(problem, body)
        if status == 429 and kind != "insufficient_quota":
            wait = retry_after(headers, now=now)
            extensions = {"service": self._service, "upstream_status": status}
            text = self._clean(f"{self._host} is overloaded (429): {message}")
            return OverloadedError(text, retry_after=_DEFAULT_RETRY_AFTER if wait is None else wait, **extensions)
        detail = f"answered {status}{_HINTS.get(status, '')}: {message}"
        more: JsonObject = {} if kind is None else {"upstream_type": kind}
        wait = retry_after(headers, now=now)
        if wait is not None:
            more["retry_after"] = wait
        return self._upstream(detail, status=status, retryable=status >= 500 or status == 408, **more)

    def of_exception(self, error: Exception, *, timeout_seconds: float) -> RollmillError:
        """Return the error for a failed connection or a wait that was too long."""
        service = self._service
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return ConnectError(f"{self._host}: no connection in time", service=service)
        if isinstance(error, aiohttp.ClientConnectorError):
            return ConnectError(self._clean(f"{self._host}: {os_reason(error.os_error)}"), service=service)
        if isinstance(error, TimeoutError):
            return UpstreamTimeoutError(f"{self._host}: no answer within {timeout_seconds:.1f} s", service=service)
        return ConnectionLostError(f"{self._host}: the connection broke: {type(error).__name__}", service=service)

    def unusable(self, what: str, body: bytes = b"") -> UpstreamError:
        """Return the error for an answer of status 200 that is not one; a proxy or a dying engine sends such."""
        excerpt = self._excerpt(body)
        return self._upstream(f"{what}: {excerpt}" if excerpt else what, status=200, retryable=True)

    def too_large(self, limit: int) -> UpstreamError:
        """Return the error for an answer that is longer than is accepted."""
        return self._upstream(f"sent more than {limit} bytes (setting max_answer_bytes)", status=200, retryable=False)

    def parse(self, body: bytes, *, expect: str = "") -> JsonObject:
        """Parse an answer or a stream's part.

        Args:
            body: JSON text.
            expect: name of a list that must be there.

        Raises:
            UpstreamError: it is not a JSON object, reports an error, or lacks the list.
        """
        if not body.strip():
            raise self.unusable("sent an empty answer")
        try:
            value: JsonValue = loads(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.unusable("sent an answer that is not a JSON object", body)
        if expect and not isinstance(value.get(expect), list):
            problem = _engine_error(body)
            raise self.unusable("reported an error" if problem else f"sent an answer without {expect!r}", body)
        return value

    def _upstream(self, detail: str, *, status: int, retryable: bool, **more: JsonValue) -> UpstreamError:
        text = self._clean(f"{self._host} {detail}")
        return UpstreamError(text, service=self._service, upstream_status=status, retryable=retryable, **more)

    def _message(self, problem: JsonObject, body: bytes) -> str:
        message = problem.get("message") or problem.get("detail")
        return message if isinstance(message, str) else self._excerpt(body) or "no explanation"

    def _excerpt(self, body: bytes) -> str:
        """Return the start of a body as one line of text, without markup; the key goes before the cut can halve it."""
        text = body[: 64 * _EXCERPT_LIMIT].decode("utf-8", "replace")
        return self._clean(_SPACES.sub(" ", _MARKUP.sub(" ", text)).strip())[:_EXCERPT_LIMIT]

    def _clean(self, text: str) -> str:
        return without(self._secret, text)[:_DETAIL_LIMIT]


def without(secret: str, text: str) -> str:
    """Return the text with the secret blotted out."""
    return text.replace(secret, "***") if secret else text


def _engine_error(body: bytes) -> JsonObject:
    """Return the error object of a body: `{"error": {...}}`, `{"error": "text"}` or the object itself."""
    try:
        value = as_object(loads(body))
    except ValueError:
        return {}
    error = value.get("error")
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else value


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Return the seconds that `Retry-After` asks to wait, whether given as a number or as a date.

    Source: RFC 9110, section 10.2.3.
    """
    raw = headers.get("Retry-After", "").strip()
    if not raw:
        return None
    try:
        seconds = float(raw)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(raw).timestamp() - now
        except ValueError:
            return None
    return min(max(seconds, 0.0), 3600.0) if seconds == seconds else None
