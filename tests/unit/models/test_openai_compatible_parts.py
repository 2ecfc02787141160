from collections.abc import AsyncIterator

import aiohttp
import pytest
from pydantic import SecretStr, ValidationError

from rollmill.contracts.json import JsonObject, dumps
from rollmill.errors import (
    ConfigError,
    ConnectionLostError,
    OverloadedError,
    UpstreamError,
    UpstreamTimeoutError,
    is_retryable,
)
from rollmill_services.models.openai_compatible.balance import REST_SECONDS, Balance, Engine
from rollmill_services.models.openai_compatible.faults import Faults, retry_after
from rollmill_services.models.openai_compatible.settings import OpenAICompatibleSettings
from rollmill_services.models.openai_compatible.sse import sse_data

KEY = "sk-very-secret-0123456789"
FAULTS = Faults(service="policy", host="engine:8000", secret=KEY)
NOW = 1_700_000_000.0


def of_status(
    status: int, body: object = b"", headers: dict[str, str] | None = None
) -> UpstreamError | OverloadedError:
    raw = body if isinstance(body, bytes) else dumps(body)
    error = FAULTS.of_status(status, headers or {}, raw, now=NOW)
    assert isinstance(error, UpstreamError | OverloadedError)
    return error


# settings


def test_one_or_several_base_urls_are_taken_without_their_last_slash() -> None:
    one = OpenAICompatibleSettings(base_url="http://a:8000/v1/")
    two = OpenAICompatibleSettings.from_environment({"ROLLMILL_BASE_URL": '["http://a/v1", "http://b/v1/"]'})

    assert one.base_urls == ["http://a:8000/v1"]
    assert two.base_urls == ["http://a/v1", "http://b/v1"]


@pytest.mark.parametrize("url", ["", "engine:8000", "ftp://x", "http://user:pw@x/v1", "http://x/v1?key=1", [], ["x"]])
def test_base_urls_that_cannot_work_are_refused(url: str | list[str]) -> None:
    with pytest.raises(ValidationError, match="without credentials"):
        OpenAICompatibleSettings(base_url=url)


def test_an_empty_api_key_is_none_and_a_broken_one_is_refused_without_being_shown() -> None:
    assert OpenAICompatibleSettings(base_url="http://a", api_key=SecretStr(" ")).api_key is None
    with pytest.raises(ValidationError) as shown:
        OpenAICompatibleSettings(base_url="http://a", api_key=SecretStr(f"{KEY}\nX-Evil: 1"))
    with pytest.raises(ConfigError) as told:
        OpenAICompatibleSettings.from_environment(
            {"ROLLMILL_BASE_URL": "http://a", "ROLLMILL_API_KEY": f"{KEY}\nX-Evil: 1"}
        )

    assert KEY not in f"{shown.value}{shown.value!r}{told.value}{told.value!r}"
    assert "api_key" in str(told.value)


def test_the_api_key_is_not_in_the_repr_of_the_settings() -> None:
    settings = OpenAICompatibleSettings(base_url="http://a", api_key=SecretStr(KEY))

    assert KEY not in f"{settings!r} {settings} {settings.model_dump_json()}"


# faults


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_with_the_host_and_never_shown(status: int) -> None:
    error = of_status(status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})

    assert "engine:8000" in error.detail
    assert "check api_key" in error.detail
    assert error.extensions == {"service": "policy", "upstream_status": status, "retryable": False}
    assert KEY not in repr(error)


def test_a_bad_request_carries_the_message_of_the_engine_without_the_key() -> None:
    error = of_status(400, {"error": {"message": f"context too long ({KEY})", "type": "BadRequestError"}})

    assert "context too long (***)" in error.detail
    assert error.extensions["upstream_type"] == "BadRequestError"
    assert not is_retryable(error)


@pytest.mark.parametrize("body", [{"error": "too long"}, {"message": "too long"}, {"detail": "too long"}, b"too long"])
def test_the_message_is_found_in_every_usual_shape(body: object) -> None:
    assert "too long" in of_status(400, body).detail


def test_a_missing_page_hints_at_the_base_url() -> None:
    assert "base_url" in of_status(404).detail
    assert "no explanation" in of_status(404).detail


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504])
def test_server_errors_are_retryable(status: int) -> None:
    error = of_status(status, b"", {"Retry-After": "3"})

    assert is_retryable(error)
    assert error.retry_after == 3.0
    assert error.extensions["upstream_status"] == status


def test_a_redirect_is_not_followed_and_not_retried() -> None:
    assert not is_retryable(of_status(302))


def test_overload_says_how_long_to_wait() -> None:
    assert isinstance(of_status(429), OverloadedError)
    assert of_status(429).retry_after == 1.0
    assert of_status(429, headers={"Retry-After": "7"}).retry_after == 7.0


def test_a_spent_quota_is_not_an_overload() -> None:
    error = of_status(429, {"error": {"code": "insufficient_quota", "message": "pay first"}})

    assert isinstance(error, UpstreamError)
    assert not is_retryable(error)


def test_long_and_html_bodies_become_a_short_line_of_text() -> None:
    page = b"<html><style>p {color: red}</style><h1>502</h1>\n<p>Bad   Gateway</p>" + b"x" * 5000
    error = of_status(502, page)

    assert "502 Bad Gateway" in error.detail
    assert "color" not in error.detail
    assert len(error.detail) <= 500
    assert len(of_status(400, {"error": {"message": "y" * 5000}}).detail) <= 500


def test_a_key_at_the_edge_of_the_excerpt_is_not_half_shown() -> None:
    error = FAULTS.unusable("sent nonsense", b"x" * 190 + KEY.encode())

    assert KEY[:6] not in error.detail


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"<html>hello</html>", "not a JSON object: hello"),
        (b'{"choices": [', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"{}", "without 'choices'"),
        (b'{"error": {"message": "boom"}}', "reported an error"),
    ],
)
def test_an_answer_that_is_none_is_a_retryable_failure(body: bytes, what: str) -> None:
    with pytest.raises(UpstreamError, match=what) as failed:
        FAULTS.parse(body, expect="choices")

    assert is_retryable(failed.value)


def test_exceptions_of_the_client_become_errors_of_ours() -> None:
    lost = FAULTS.of_exception(aiohttp.ServerDisconnectedError(), timeout_seconds=1.0)
    slow = FAULTS.of_exception(TimeoutError(), timeout_seconds=1.5)

    assert isinstance(lost, ConnectionLostError)
    assert isinstance(slow, UpstreamTimeoutError)
    assert "1.5 s" in slow.detail
    assert "no connection in time" in FAULTS.of_exception(aiohttp.ConnectionTimeoutError(), timeout_seconds=1).detail


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("", None),
        ("soon", None),
        ("nan", None),
        ("-3", 0.0),
        ("2.5", 2.5),
        ("99999", 3600.0),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(raw: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": raw}, now=NOW) == seconds


# balance


def engines(number: int) -> list[Engine]:
    return [Engine(f"http://e{index}", FAULTS) for index in range(number)]


def test_the_engine_with_the_least_in_flight_is_chosen() -> None:
    first, second = engines(2)
    balance = Balance([first, second], choice=lambda tied: tied[0])

    with first.busy():
        assert balance.choose() is second
        with second.busy(), second.busy():
            assert balance.choose() is first
    assert first.in_flight == second.in_flight == 0


def test_an_unreachable_engine_rests_for_a_while() -> None:
    now = 100.0
    first, second = engines(2)
    balance = Balance([first, second], clock=lambda: now, choice=lambda tied: tied[0])

    assert balance.rest(first)
    assert balance.choose() is second
    now += REST_SECONDS
    assert balance.choose() is first


def test_when_all_engines_rest_one_is_asked_all_the_same() -> None:
    (only,) = engines(1)
    balance = Balance([only], clock=lambda: 100.0)

    assert not balance.rest(only)
    assert balance.choose() is only


# server-sent events


async def data_of(*chunks: bytes) -> list[bytes]:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [data async for data in sse_data(body(), limit=1000)]


async def test_events_are_found_wherever_the_chunks_are_cut() -> None:
    whole = b': ping\r\n\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\ndata:[DONE]\n\n'
    expected = [b'{"x":\n1}', b"[DONE]"]

    assert await data_of(whole) == expected
    assert await data_of(*(whole[i : i + 1] for i in range(len(whole)))) == expected


async def test_an_event_without_an_end_is_not_collected_for_ever() -> None:
    assert len(await data_of(*[b"data: " + b"x" * 500 + b"\n\n"] * 5)) == 5
    for endless in ([b"data: " + b"x" * 600] * 2, [b"data: " + b"x" * 600 + b"\n"] * 2):
        with pytest.raises(UpstreamError, match="more than 1000 bytes"):
            await data_of(*endless)


async def test_an_event_that_the_body_breaks_off_in_is_not_yielded() -> None:
    assert await data_of(b"data: 1\n\ndata: 2\n") == [b"1"]


def test_parsing_without_an_expected_list_takes_any_object() -> None:
    value: JsonObject = FAULTS.parse(b'{"a": 1}')

    assert value == {"a": 1}
