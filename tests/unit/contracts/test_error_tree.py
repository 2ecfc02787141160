from collections.abc import Iterator

import pytest

from rollmill.client.transport import Reply, reply_error
from rollmill.contracts.json import dumps, loads
from rollmill.errors import (
    ConflictError,
    ConnectionLostError,
    DeadlineError,
    InputError,
    NotFoundError,
    OverloadedError,
    PayloadTooLargeError,
    RollmillError,
    UnauthorizedError,
    UpstreamError,
    from_problem,
    is_retryable,
    to_problem,
)
from rollmill.server.calls import problem_answer


def tree(cls: type[RollmillError]) -> Iterator[type[RollmillError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == "rollmill.errors":
            yield from tree(child)


@pytest.mark.parametrize("cls", list(tree(RollmillError)))
def test_every_error_crosses_the_wire_and_comes_back_as_its_own_class(cls: type[RollmillError]) -> None:
    answer = problem_answer(cls("it broke", service="x", retry_after=2.5), instance="/run")
    headers = {name.decode(): value.decode() for name, value in answer.headers}

    error = reply_error(answer.status, headers, answer.body)

    assert type(error) is cls
    assert answer.status == cls.status
    assert headers["content-type"] == "application/problem+json"
    assert headers["retry-after"] == "2.5"
    assert loads(answer.body)["type"] == f"urn:rollmill:problem:{cls.slug}"
    assert loads(answer.body)["instance"] == "/run"
    assert str(error) == "it broke"
    assert error.extensions["service"] == "x"
    assert error.retry_after == 2.5


def test_slugs_are_unique() -> None:
    slugs = [cls.slug for cls in tree(RollmillError)]
    assert len(slugs) == len(set(slugs))


def test_only_unauthorized_asks_for_a_bearer_token() -> None:
    names = {name for name, _ in problem_answer(UnauthorizedError("no")).headers}
    assert b"www-authenticate" in names
    assert b"www-authenticate" not in {name for name, _ in problem_answer(NotFoundError("no")).headers}


def test_extensions_cannot_overwrite_the_standard_members() -> None:
    problem = to_problem(RollmillError("text", status=200, type="other"))
    assert problem["status"] == 500
    assert problem["type"] == "urn:rollmill:problem:internal"


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (401, UnauthorizedError),
        (403, UnauthorizedError),
        (404, NotFoundError),
        (409, ConflictError),
        (413, PayloadTooLargeError),
        (422, InputError),
        (429, OverloadedError),
        (503, OverloadedError),
        (504, DeadlineError),
        (500, UpstreamError),
        (302, UpstreamError),
        (400, UpstreamError),
    ],
)
def test_a_foreign_answer_becomes_the_nearest_class(status: int, cls: type[RollmillError]) -> None:
    error = reply_error(status, {"content-type": "text/html"}, b"<h1>no</h1>")
    assert type(error) is cls
    assert str(error) == f"HTTP {status}: <h1>no</h1>"


def test_a_foreign_failure_keeps_its_status() -> None:
    assert reply_error(418, {}, b"tea").extensions["upstream_status"] == 418


def test_any_member_names_of_a_foreign_problem_are_taken() -> None:
    body = {"self": 1, "detail": [{"loc": ["body"]}], "cls": 2, "type": 7}
    error = from_problem(body, 422)
    assert type(error) is InputError
    assert error.extensions == {"self": 1, "cls": 2}


@pytest.mark.parametrize("body", [b"", b"[1]", b"{torn", b'"text"', b"\xff\xfe"])
def test_a_torn_problem_document_is_still_an_error_of_its_status(body: bytes) -> None:
    assert type(reply_error(503, {"content-type": "application/problem+json"}, body)) is OverloadedError


@pytest.mark.parametrize(("header", "expected"), [("3", 3.0), ("0.5", 0.5), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_retry_after_is_read_when_it_is_a_number_of_seconds(header: str, expected: float | None) -> None:
    assert reply_error(503, {"retry-after": header}, b"").retry_after == expected


def test_the_upstreams_own_judgement_about_retries_wins_over_the_class() -> None:
    assert is_retryable(ConnectionLostError("x"))
    assert not is_retryable(ConnectionLostError("x", retryable=False))
    assert not is_retryable(UpstreamError("x"))
    assert is_retryable(UpstreamError("x", retryable=True))


def test_an_answer_that_is_not_json_is_not_retried() -> None:
    with pytest.raises(UpstreamError, match="not JSON: <html>") as caught:
        Reply(200, {}, b"<html>\n").json()
    assert not is_retryable(caught.value)


def test_a_problem_survives_serialisation() -> None:
    problem = loads(dumps(to_problem(InputError("bad", errors=[{"pointer": "/a", "detail": "x"}]))))
    assert from_problem(problem, 422).extensions["errors"] == [{"pointer": "/a", "detail": "x"}]
