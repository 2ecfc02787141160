import hmac
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b

from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.errors import OverloadedError, SessionNotFoundError


class Session:
    """One episode's state on a resources server: from seed to close, on one replica."""

    __slots__ = ("calls", "id", "last_used", "row", "state")

    def __init__(self, session_id: str, row: Row) -> None:
        self.id = session_id
        self.row = row
        """The row that seeded the session; empty when a tool was called without seeding."""
        self.state: JsonObject = {}
        """Belongs to the environment's author."""
        self.last_used = 0.0
        self.calls = 0
        """Calls at work on it; a session in use is never idle."""


class SessionSigner:
    """Signs session ids, so that nobody can guess or forge another rollout's session.

    Args:
        secret: key of the signature (keyed BLAKE2b, RFC 7693: a third of what HMAC costs); random when empty.
    """

    def __init__(self, secret: str = "") -> None:
        self._key = blake2b(secret.encode() or secrets.token_bytes(32), digest_size=32, person=b"sessions").digest()
        self._token_key = blake2b(b"tokens", key=self._key, digest_size=32).digest()

    def issue(self) -> tuple[str, str]:
        """Return a fresh session id and its signed form."""
        session_id = secrets.token_urlsafe(18)
        return session_id, f"{session_id}.{self._signature(session_id)}"

    def check(self, signed: str) -> str | None:
        """Return the session id of a signed value, or None when the signature is wrong."""
        session_id, _, signature = signed.partition(".")
        expected = self._signature(session_id)
        return session_id if hmac.compare_digest(expected.encode(), signature.encode()) else None

    def token(self, session_id: str) -> str:
        """Return a token that stands for the session where its signed id is not to be known."""
        return f"{session_id}.{_signed(self._token_key, session_id)}"

    def check_token(self, token: str) -> str | None:
        """Return the session id of a token, or None when it is not one that `token` gave."""
        session_id = token.partition(".")[0]
        return session_id if hmac.compare_digest(self.token(session_id).encode(), token.encode()) else None

    def _signature(self, session_id: str) -> str:
        return _signed(self._key, session_id)


def _signed(key: bytes, session_id: str) -> str:
    return blake2b(session_id.encode(), key=key, digest_size=16).hexdigest()


class SessionStore:
    """The open sessions of one replica.

    Args:
        idle_seconds: sessions unused for longer are handed out by `take_idle`.
        limit: most sessions open at once.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, idle_seconds: float, limit: int = 100_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sessions: dict[str, Session] = {}
        self._idle_seconds = idle_seconds
        self._limit = limit
        self._clock = clock

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, session_id: str, row: Row) -> Session:
        """Open a session under a new id.

        Raises:
            OverloadedError: too many sessions are open.
        """
        if len(self._sessions) >= self._limit:
            raise OverloadedError(f"{self._limit} sessions are open on this replica", retry_after=1.0)
        session = Session(session_id, row)
        session.last_used = self._clock()
        self._sessions[session_id] = session
        return session

    def get(self, session_id: str) -> Session:
        """Return an open session and mark it used.

        Raises:
            SessionNotFoundError: it was never opened here, was closed, or was reaped.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFoundError("the session is not open on this replica: closed, reaped, or another replica's")
        session.last_used = self._clock()
        return session

    def pop(self, session_id: str) -> Session | None:
        """Remove a session; None when it is not open."""
        return self._sessions.pop(session_id, None)

    @contextmanager
    def using(self, session: Session) -> Iterator[None]:
        """Keep a session from being idle during the block, however long it takes."""
        session.calls += 1
        try:
            yield
        finally:
            session.calls -= 1
            session.last_used = self._clock()

    def take_idle(self) -> list[Session]:
        """Remove and return every session that was not used for the idle time."""
        horizon = self._clock() - self._idle_seconds
        idle = [s for s in self._sessions.values() if s.last_used < horizon and not s.calls]
        for session in idle:  # all at once: others may be closed while the caller ends these
            del self._sessions[session.id]
        return idle

    def take_all(self) -> Iterator[Session]:
        """Remove and yield every session, for shutdown."""
        while self._sessions:
            yield self._sessions.popitem()[1]
