import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from rollmill.config.secret_values import MASK
from rollmill.context import CallContext, reset_context, set_context
from rollmill.contracts.json import JsonObject
from rollmill.observability.logging import configure_logging, escape_control, readable_line


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = False
    structlog.reset_defaults()


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines(stream: io.StringIO) -> list[JsonObject]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_json_line_has_a_utc_time_a_level_an_event_and_its_fields(stream: io.StringIO) -> None:
    configure_logging("INFO", json=True, stream=stream)

    structlog.get_logger().info("rollout_finished", reward=1.0, rollout_index=3)

    (line,) = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert line["timestamp"].endswith("Z")
    assert {k: line[k] for k in ("level", "event", "reward", "rollout_index")} == {
        "level": "info",
        "event": "rollout_finished",
        "reward": 1.0,
        "rollout_index": 3,
    }


def test_the_request_id_of_the_call_being_served_is_on_every_line(stream: io.StringIO) -> None:
    configure_logging("INFO", json=True, stream=stream)
    token = set_context(CallContext("abc123"))
    try:
        structlog.get_logger().info("inside")
        logging.getLogger("some.library").warning("also inside")
    finally:
        reset_context(token)
    structlog.get_logger().info("outside")

    assert [line.get("request_id") for line in lines(stream)] == ["abc123", "abc123", None]


def test_lines_below_the_level_are_left_out(stream: io.StringIO) -> None:
    configure_logging("WARNING", json=True, stream=stream)

    structlog.get_logger().info("quiet")
    logging.getLogger("library").info("quiet too")
    structlog.get_logger().warning("loud")

    assert [line["event"] for line in lines(stream)] == ["loud"]


def test_logging_of_libraries_goes_the_same_way_once_even_when_configured_twice(stream: io.StringIO) -> None:
    configure_logging("INFO", json=True, stream=io.StringIO())
    configure_logging("INFO", json=True, stream=stream)

    logging.getLogger("asyncio").warning("took %d %% of %s", 7, "time")

    (line,) = lines(stream)
    assert (line["event"], line["level"], line["logger"]) == ("took 7 % of time", "warning", "asyncio")


def test_access_lines_of_the_web_server_are_off(stream: io.StringIO) -> None:
    configure_logging("DEBUG", json=True, stream=stream)

    logging.getLogger("uvicorn.access").info("GET / 200")

    assert stream.getvalue() == ""


def test_a_library_with_levels_of_its_own_is_still_heard(stream: io.StringIO) -> None:
    configure_logging("DEBUG", json=True, stream=stream)

    logging.getLogger("library").log(35, "between warning and error")

    assert lines(stream)[0]["level"] == "warning"


def test_a_library_record_that_cannot_be_formatted_breaks_nothing(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    configure_logging("INFO", json=True, stream=stream)

    logging.getLogger("library").warning("%d", "not a number")

    assert stream.getvalue() == ""


def test_an_exception_is_written_with_its_traceback_on_the_same_line(stream: io.StringIO) -> None:
    configure_logging("INFO", json=True, stream=stream)
    try:
        raise ValueError("broken")
    except ValueError as error:
        structlog.get_logger().exception("failed")
        logging.getLogger("library").error("failed", exc_info=error)
        structlog.get_logger().error("failed", exc_info=sys.exc_info())

    told = lines(stream)
    assert len(told) == 3
    assert all(line["exception"].endswith("ValueError: broken") for line in told)
    assert all("Traceback" in line["exception"] for line in told)


@pytest.mark.parametrize(
    "key",
    ["token", "TOKEN", "api_key", "apiKey", "x-api-key", "Authorization", "password", "session_secret", "Set-Cookie"],
)
def test_values_whose_key_looks_like_a_secret_are_masked_also_deep_inside(stream: io.StringIO, key: str) -> None:
    configure_logging("INFO", json=True, stream=stream)

    structlog.get_logger().info("told", **{key: "hunter2"}, deep=[{"more": {key: ["hunter2"]}}])

    assert "hunter2" not in stream.getvalue()
    assert lines(stream)[0][key] == MASK


@pytest.mark.parametrize("key", ["max_tokens", "input_tokens", "key", "author"])
def test_keys_that_only_resemble_a_secret_are_shown(stream: io.StringIO, key: str) -> None:
    configure_logging("INFO", json=True, stream=stream)

    structlog.get_logger().info("told", **{key: 5})

    assert lines(stream)[0][key] == 5


def test_secret_values_and_bearer_tokens_in_text_are_masked(stream: io.StringIO) -> None:
    configure_logging("INFO", json=True, stream=stream)

    structlog.get_logger().info("sent Bearer abcdefgh1234", value=SecretStr("hunter2"), nothing=None)
    structlog.get_logger().info("empty", token="", secret=None)

    assert "hunter2" not in stream.getvalue()
    assert "abcdefgh1234" not in stream.getvalue()
    assert lines(stream)[1] | {"token": "", "secret": None} == lines(stream)[1]


def test_values_that_json_does_not_know_become_text(stream: io.StringIO) -> None:
    configure_logging("INFO", json=True, stream=stream)
    circular: list[object] = []
    circular.append(circular)

    structlog.get_logger().info("told", path=Path("a/b"), huge=2**80, names={"x"}, loop=circular, keys={1: b"x"})

    (line,) = lines(stream)
    assert (line["path"], line["huge"], line["names"], line["keys"]) == ("a/b", str(2**80), ["x"], {"1": "b'x'"})


def test_text_for_people_is_one_line_with_quoted_values(stream: io.StringIO) -> None:
    configure_logging("INFO", json=False, stream=stream)

    structlog.get_logger().warning("head_unreachable", url="http://h", error="no\nanswer", counts={"a": 1})

    time, rest = stream.getvalue().split(" ", 1)
    assert len(time) == len("19:38:00")
    assert rest == "warning  head_unreachable url=http://h error='no\\nanswer' counts={\"a\":1}\n"


def test_text_for_people_shows_a_traceback_below_the_line(stream: io.StringIO) -> None:
    configure_logging("INFO", json=False, stream=stream)
    try:
        raise ValueError("broken \x1b[31m")
    except ValueError:
        structlog.get_logger().exception("failed")

    assert stream.getvalue().splitlines()[0].endswith("error    failed")
    assert stream.getvalue().endswith("ValueError: broken \\x1b[31m\n")


def test_without_a_stream_lines_go_to_the_stderr_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    configure_logging("INFO", json=True)
    later = io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)

    structlog.get_logger().info("told")

    assert lines(later)[0]["event"] == "told"


@pytest.mark.parametrize("json_lines", [True, False])
@settings(max_examples=60)
@given(text=st.text(), key=st.sampled_from(["value", "event", "deep"]))
def test_no_text_reaches_a_terminal_with_control_characters_in_it(json_lines: bool, text: str, key: str) -> None:
    stream = io.StringIO()
    configure_logging("INFO", json=json_lines, stream=stream)

    structlog.get_logger().info(text if key == "event" else "told", value=text, deep={"x": [text]})

    written = stream.getvalue()
    assert written.endswith("\n")
    assert "\n" not in written[:-1]
    assert escape_control(written[:-1]) == written[:-1]


def test_escapes_name_the_character() -> None:
    assert escape_control("a\x1b[2J\r\n\t\u202eb\x9b") == r"a\x1b[2J\r\n\t\u202eb\x9b"
    assert escape_control("a\tb\n\x1b", keep_lines=True) == "a\tb\n\\x1b"


def test_a_json_line_is_shown_to_people_as_text_and_other_lines_as_they_are() -> None:
    event = {"timestamp": "2026-11-20T19:38:00.123Z", "level": "error", "event": "service_failed", "detail": "no port"}

    assert readable_line(json.dumps(event)) == "19:38:00 error    service_failed detail='no port'"
    assert readable_line("Traceback \x1b[0m") == r"Traceback \x1b[0m"
    assert readable_line("[1, 2]") == "[1, 2]"


def test_a_traceback_inside_a_json_line_is_shown_as_lines() -> None:
    event = {"event": "Traceback\n  File x\nValueError: \x1b\n", "level": "error"}

    assert readable_line(json.dumps(event)) == "error    Traceback\n  File x\nValueError: \\x1b"


def test_a_secret_is_masked_wherever_it_stands_in_a_line() -> None:
    stream = io.StringIO()
    for json_lines in (True, False):
        configure_logging("INFO", json=json_lines, stream=stream, hide=lambda: ['pass"word'])
        try:
            raise ValueError('cannot log in with pass"word')
        except ValueError:
            structlog.get_logger().exception('failed_pass"word', url='http://x:pass"word@h', inner={"a": ['pass"word']})
        logging.getLogger("library").warning('it said pass"word')

    assert "word" not in stream.getvalue().replace("cannot log in", "")
    # The event, the URL, the list, this test's own line in the traceback, the error, and what the library said.
    assert stream.getvalue().count(MASK) == 2 * 6
