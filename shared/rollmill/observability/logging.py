"""Log lines of every process: to stderr, with the request id of the call that is being served, without secrets."""

import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Final, TextIO

import orjson
import structlog

from rollmill.config.secret_values import MASK, without_secrets
from rollmill.context import CallContext, get_context
from rollmill.contracts.attempts import AttemptId
from rollmill.contracts.json import JsonObject, JsonValue

_SECRET_KEY: Final = re.compile(
    r"(token|api_?key|access_?key|private_?key|authorization|cookie|passw(or)?d|secret|credentials?)$"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer)\s+[A-Za-z0-9._~+/=-]{8,}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CONTROL_BUT_LINES: Final = re.compile(f"(?![\\n\\t]){_CONTROL.pattern}")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")
_MAX_DEPTH: Final = 8
_OWN_KEYS: Final = ("timestamp", "level", "event", "exception")

_Event = MutableMapping[str, JsonValue]


def _nothing() -> Iterable[str]:
    return ()


def configure_logging(
    level: str, *, json: bool, stream: TextIO | None = None, hide: Callable[[], Iterable[str]] = _nothing
) -> None:
    """Send all logging of this process, also that of libraries, to one stream.

    Call it once at the start of a process; calling it again replaces the former configuration.

    Args:
        level: DEBUG, INFO, WARNING or ERROR.
        json: one JSON object a line with UTC timestamps, for services; else text for a person.
        stream: stderr when None.
        hide: gives the secrets of this process; wherever in a line one stands, also in a traceback, it is masked.
    """
    number = logging.getLevelNamesMapping()[level]
    _configure_structlog(number, json=json, stream=stream, hide=hide)
    root = logging.getLogger()
    root.handlers = [handler for handler in root.handlers if not isinstance(handler, _Bridge)]
    root.addHandler(_Bridge())
    root.setLevel(number)
    logging.getLogger("uvicorn.access").disabled = True
    # These tell every single request, or what we tell ourselves.
    for name in ("httpx", "httpcore", "aiohttp.access", "uvicorn.error"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def ensure_logging() -> None:
    """Give Rollmill's own log lines their form where nobody has configured any: in a trainer's process, or a test.

    Warnings and errors go to stderr; the standard library's logging, which belongs to the application, is left alone.
    """
    if not structlog.is_configured():
        _configure_structlog(logging.WARNING, json=False, stream=None, hide=_nothing)


def _configure_structlog(level: int, *, json: bool, stream: TextIO | None, hide: Callable[[], Iterable[str]]) -> None:
    write = _as_json if json else _as_text

    def written(_: object, __: str, event: _Event) -> str:
        return without_secrets(write(event), hide())

    structlog.configure(
        processors=[structlog.processors.add_log_level, _add_circumstances, _make_safe, written],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _Lines(stream),
        cache_logger_on_first_use=False,
    )


def escape_control(text: str, *, keep_lines: bool = False) -> str:
    r"""Write control characters and those that reorder text as escapes (`\x1b`), so that none acts on a terminal.

    Args:
        text: any text.
        keep_lines: leave newlines and tabs as they are.
    """
    return (_CONTROL_BUT_LINES if keep_lines else _CONTROL).sub(lambda match: _escape(match[0]), text)


def readable_line(line: str) -> str:
    """Show one line of a service's JSON log as text for a person; any other line as it is, made harmless.

    What the line holds of several lines, a traceback above all, is shown as these.
    """
    try:
        event = orjson.loads(line)
    except ValueError:
        event = None
    if isinstance(event, dict) and "event" in event:
        return _text(event, keep_lines=True)
    return escape_control(line)


class _Lines:
    """Writes each line at once, to the stderr that the process has at that time when no stream was given."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(line + "\n")
        stream.flush()

    debug = info = warning = error = critical = msg


class _Bridge(logging.Handler):
    """Gives records of the standard library's logging to structlog, so that there is one format."""

    def emit(self, record: logging.LogRecord) -> None:
        level = max((known for known in (10, 20, 30, 40, 50) if known <= record.levelno), default=logging.DEBUG)
        try:
            log = structlog.get_logger().bind(logger=record.name)
            log.log(level, record.getMessage(), exc_info=record.exc_info)
        except Exception:  # what logging itself does: a broken log line must never break its caller
            self.handleError(record)


def _add_circumstances(_: object, __: str, event: _Event) -> _Event:
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for name, value in _whereabouts(get_context()).items():
        event.setdefault(name, value)
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BaseException):
        event["exception"] = "".join(traceback.format_exception(error)).rstrip()
    return event


def _whereabouts(call: CallContext) -> JsonObject:
    """Return the ids of the call that is being served, as far as there are any."""
    trace = _TRACEPARENT.match(call.traceparent)
    ids: JsonObject = {"request_id": call.request_id} if call.request_id else {}
    ids |= {"trace_id": trace[1]} if trace else {}
    attempt = AttemptId.parse(call.attempt)
    return ids | (attempt._asdict() if attempt else {})


def _make_safe(_: object, __: str, event: _Event) -> _Event:
    return {str(key): _safe(str(key), value, 0) for key, value in event.items()}


def _safe(key: str, value: JsonValue, depth: int) -> JsonValue:
    if _SECRET_KEY.search(key.lower().replace("-", "_")) and value not in (None, ""):
        return MASK
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {escape_control(str(name)): _safe(str(name), item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe("", item, depth + 1) for item in value]
    text = _BEARER.sub(lambda match: f"{match[1]} {MASK}", str(value))
    return escape_control(text, keep_lines=True)


def _as_json(event: _Event) -> str:
    first: JsonObject = {key: event[key] for key in _OWN_KEYS[:3] if key in event}
    return orjson.dumps(first | dict(event)).decode()


def _as_text(event: _Event) -> str:
    return _text(event)


def _text(event: Mapping[str, JsonValue], *, keep_lines: bool = False) -> str:
    """`19:38:00 warning  head_unreachable url=http://… error='no connection'`, an exception on lines of its own."""
    fields = [f"{escape_control(str(key))}={_shown(value)}" for key, value in event.items() if key not in _OWN_KEYS]
    time = escape_control(str(event.get("timestamp", ""))[11:19])
    told = escape_control(str(event["event"]).rstrip(), keep_lines=keep_lines)
    line = " ".join([time, f"{escape_control(str(event.get('level', ''))):<8}", told, *fields]).strip()
    exception = event.get("exception")
    return f"{line}\n{escape_control(str(exception), keep_lines=True)}" if exception else line


def _shown(value: JsonValue) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return escape_control(repr(text) if isinstance(value, str) and (not text or re.search(r"[\s='\"]", text)) else text)


def _escape(character: str) -> str:
    named = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
    code = ord(character)
    return named.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
