import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256

COOKIE = "rollmill_page"
"""Name of the cookie that holds a session."""


class PageSessions:
    """Signed values that stand for a login. Nothing is kept: whoever has the key can check them.

    Args:
        token: the suite's token; empty when none is asked for.
        secret: signs the sessions; random when empty, and then a restart ends them all.
        seconds: how long a session lives.
        clock: Unix seconds.
    """

    def __init__(self, token: str, *, secret: str = "", seconds: float, clock: Callable[[], float] = time.time) -> None:
        self._token = token.encode()
        # The token is part of the key, so that changing the token ends every session.
        self._key = hmac.digest((secret or secrets.token_hex(32)).encode(), b"page\0" + self._token, sha256)
        self._clock = clock
        self.seconds = seconds

    @property
    def needed(self) -> bool:
        """Whether anybody has to log in."""
        return bool(self._token)

    def accepts(self, token: str) -> bool:
        """Say whether this is the suite's token."""
        return hmac.compare_digest(token.encode(), self._token)

    def issue(self) -> str:
        """Return a new session: when it ends, something random, and a signature of both."""
        told = f"{int(self._clock() + self.seconds)}.{secrets.token_hex(8)}"
        return f"{told}.{self._signature(told)}"

    def valid(self, session: str) -> bool:
        """Say whether a session was issued here and has not ended."""
        told, _, signature = session.rpartition(".")
        if not session.isascii() or not hmac.compare_digest(signature, self._signature(told)):
            return False
        return int(told.partition(".")[0]) > self._clock()

    def _signature(self, told: str) -> str:
        return hmac.new(self._key, told.encode(), sha256).hexdigest()
