import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.errors import OverloadedError, SessionNotFoundError
from rollmill.server.sessions import SessionSigner, SessionStore
from rollmill.testing import FakeClock


def test_an_issued_id_passes_its_own_signer_only() -> None:
    signer = SessionSigner("secret")
    session_id, signed = signer.issue()
    assert signer.check(signed) == session_id
    assert SessionSigner("secret").check(signed) == session_id
    assert SessionSigner("other").check(signed) is None
    assert SessionSigner().check(signed) is None


def test_without_a_secret_each_signer_has_its_own() -> None:
    assert SessionSigner().check(SessionSigner().issue()[1]) is None


@given(st.text(alphabet=st.characters(codec="latin-1"), max_size=60))
@settings(max_examples=100)
def test_no_made_up_value_passes(forged: str) -> None:
    assert SessionSigner("secret").check(forged) is None


def test_a_token_stands_for_its_session_and_is_no_signed_id() -> None:
    signer = SessionSigner("secret")
    session_id, signed = signer.issue()
    token = signer.token(session_id)
    assert signer.check_token(token) == SessionSigner("secret").check_token(token) == session_id
    assert SessionSigner("other").check_token(token) is None
    assert signer.check(token) is None
    assert signer.check_token(signed) is None
    assert signer.check_token(token[:-1]) is signer.check_token("") is None


def test_ids_differ() -> None:
    signer = SessionSigner("secret")
    assert len({signer.issue()[0] for _ in range(100)}) == 100


def test_a_closed_session_is_gone() -> None:
    store = SessionStore(idle_seconds=10)
    session = store.open("a", {"x": 1})
    assert store.get("a") is session
    assert store.pop("a") is session
    assert store.pop("a") is None
    with pytest.raises(SessionNotFoundError):
        store.get("a")


def test_idle_sessions_are_taken_once_and_used_ones_stay() -> None:
    clock = FakeClock()
    store = SessionStore(idle_seconds=10, clock=clock)
    for name in "abc":
        store.open(name, {})
    clock.advance(8)
    store.get("b")
    clock.advance(3)
    assert [session.id for session in store.take_idle()] == ["a", "c"]
    assert list(store.take_idle()) == []
    assert len(store) == 1


def test_sessions_closed_while_idle_ones_are_being_ended_do_no_harm() -> None:
    clock = FakeClock()
    store = SessionStore(idle_seconds=1, clock=clock)
    store.open("a", {})
    store.open("b", {})
    clock.advance(2)
    ended = []
    for session in store.take_idle():
        store.pop("b")
        ended.append(session.id)
    assert ended == ["a", "b"]


def test_too_many_sessions_are_refused_with_a_time_to_wait() -> None:
    store = SessionStore(idle_seconds=1, limit=1)
    store.open("a", {})
    with pytest.raises(OverloadedError) as caught:
        store.open("b", {})
    assert caught.value.retry_after == 1.0


def test_shutdown_takes_every_session() -> None:
    store = SessionStore(idle_seconds=1)
    for name in "abc":
        store.open(name, {})
    assert {session.id for session in store.take_all()} == {"a", "b", "c"}
    assert len(store) == 0


def test_a_session_with_a_call_at_work_is_not_idle_and_counts_as_used_when_the_call_ends() -> None:
    clock = FakeClock()
    store = SessionStore(idle_seconds=10, clock=clock)
    session = store.open("a", {})

    with store.using(session):
        clock.advance(60)
        assert list(store.take_idle()) == []
    clock.advance(9)
    assert list(store.take_idle()) == []
    clock.advance(2)
    assert list(store.take_idle()) == [session]
