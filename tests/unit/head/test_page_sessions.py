from rollmill.config.tokens import Tokens
from rollmill.testing import FakeClock
from rollmill_services.head.sessions import PageSessions


def test_a_session_lives_as_long_as_it_is_set_to() -> None:
    clock = FakeClock(1_000_000)
    sessions = PageSessions(Tokens("token"), secret="s", seconds=60, clock=clock)
    session = sessions.issue()
    assert sessions.valid(session)
    clock.advance(59)
    assert sessions.valid(session)
    clock.advance(2)
    assert not sessions.valid(session)


def test_a_session_cannot_be_prolonged_or_made_up() -> None:
    sessions = PageSessions(Tokens("token"), secret="s", seconds=60, clock=FakeClock(1_000_000))
    end, nonce, signature = sessions.issue().split(".")

    assert not sessions.valid(f"{int(end) + 1}.{nonce}.{signature}")
    assert not sessions.valid(f"{end}.{nonce}.{'0' * 64}")
    assert not sessions.valid("")
    assert not sessions.valid("..")


def test_another_secret_or_another_token_ends_every_session() -> None:
    clock = FakeClock(1_000_000)
    session = PageSessions(Tokens("token"), secret="s", seconds=60, clock=clock).issue()

    assert PageSessions(Tokens("token"), secret="s", seconds=60, clock=clock).valid(session)
    assert not PageSessions(Tokens("token"), secret="t", seconds=60, clock=clock).valid(session)
    assert not PageSessions(Tokens("other"), secret="s", seconds=60, clock=clock).valid(session)
    assert not PageSessions(Tokens("token"), seconds=60, clock=clock).valid(session)
