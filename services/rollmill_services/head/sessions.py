import hmac
import secrets
import time
from collections.abc import Callable
from hashlib import sha256

from rollmill.config.tokens import Tokens

COOKIE = "rollmill_page"
"""Name of the cookie that holds a session."""


class PageSessions:
    """Signed values that stand for a login. Nothing is kept: whoever has the key can check them.

    Args:
        tokens: the suite's tokens; a session ends when none that was valid at its beginning is.
        secret: signs the sessions; random when empty, and then a restart ends them all.
        seconds: how long a session lives.
        clock: Unix seconds.
    """

    def __init__(
        self, tokens: Tokens, *, secret: str = "", seconds: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._tokens = tokens
        self._secret = (secret or secrets.token_hex(32)).encode()
        self._clock = clock
        self.seconds = seconds

    @property
    def needed(self) -> bool:
        """Whether anybody has to log in."""
        return bool(self._tokens)

    def accepts(self, token: str) -> bool:
        """Say whether this is one of the suite's tokens."""
        return self._tokens.accepts(b"Bearer " + token.encode())

    def issue(self) -> str:
        """Return a new session: when it ends, something random, and a signature of both."""
        told = f"{int(self._clock() + self.seconds)}.{secrets.token_hex(8)}"
        return f"{told}.{_signature(self._keys()[0], told)}"

    def valid(self, session: str) -> bool:
        """Say whether a session was issued here and has not ended."""
        told, _, signature = session.rpartition(".")
        if not session.isascii() or not any(
            [hmac.compare_digest(signature, _signature(key, told)) for key in self._keys()]
        ):
            return False
        return int(told.partition(".")[0]) > self._clock()

    def _keys(self) -> list[bytes]:
        """A token is part of each key, so that a token that is not valid any more ends its sessions."""
        tokens = self._tokens.valid or ("",)
        return [hmac.digest(self._secret, b"page\0" + token.encode(), sha256) for token in tokens]


def _signature(key: bytes, told: str) -> str:
    return hmac.new(key, told.encode(), sha256).hexdigest()
