"""Bearer tokens: one that is fixed, or the one or two of a private file, which may be rotated while services run."""

import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from rollmill.config.settings import ServiceSettings
from rollmill.errors import ConfigError, RollmillError

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether the file has changed, at most; a call that is about to be refused looks as well."""
MAX_TOKENS: Final = 2
_MAX_BYTES: Final = 4096


class Tokens:
    """The tokens that are valid now: the first is shown to others, all are accepted.

    Args:
        fixed: the only token; empty for none.
        file: where the tokens are instead, one a line; read when first needed, and again when it changes.
        clock: monotonic seconds.

    Raises:
        ConfigError: by whatever reads the file first: it cannot be used; says the fix. Later on such a file changes
            nothing but the log.
    """

    def __init__(
        self, fixed: str = "", *, file: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.file = file
        self._clock = clock
        self._valid: tuple[str, ...] = (fixed,) if fixed else ()
        self._expected = _expected(self._valid)
        self._looked = float("-inf")
        self._state: tuple[int, int, int] | None = None
        self._told = False

    def __repr__(self) -> str:
        return f"Tokens(file={str(self.file)!r})" if self.file else "Tokens()"

    def __bool__(self) -> bool:
        return self.file is not None or bool(self._valid)

    @property
    def valid(self) -> tuple[str, ...]:
        """All valid tokens."""
        self._look(LOOK_SECONDS)
        return self._valid

    @property
    def known(self) -> tuple[str, ...]:
        """The tokens as they were read last; nothing is read now."""
        return self._valid

    @property
    def shown(self) -> str:
        """The token that is shown to others; empty for none."""
        return self.valid[0] if self else ""

    def accepts(self, authorization: bytes) -> bool:
        """Say whether an `Authorization` header has a valid token, in a time that tells nothing about them."""
        self._look(LOOK_SECONDS)
        if self._matches(authorization):
            return True
        return self._look(0.0) and self._matches(authorization)  # the token may have been rotated a moment ago

    def _matches(self, authorization: bytes) -> bool:
        found = [hmac.compare_digest(authorization, expected) for expected in self._expected]
        return any(found)

    def _look(self, age_seconds: float) -> bool:
        """Read the file again if the last look is that old and it has changed; True when it was read."""
        if self.file is None or self._clock() - self._looked < age_seconds:
            return False
        self._looked = self._clock()
        try:
            status = self.file.stat()
            state = status.st_ino, status.st_mtime_ns, status.st_size
            if state == self._state:
                return False
            self._valid = read_tokens(self.file)
        except (OSError, RollmillError) as error:
            if not self._valid:
                raise _unusable(self.file, error) from None
            if not self._told:  # once, and not for every call that is refused
                log.warning("token_file_unusable", path=str(self.file), error=str(_unusable(self.file, error)))
            self._told = True
            return False
        self._expected, self._state, self._told = _expected(self._valid), state, False
        return True


def service_tokens(settings: ServiceSettings) -> Tokens:
    """Return what a service's settings say about tokens; nothing is read yet."""
    fixed = settings.token.get_secret_value() if settings.token else ""
    return Tokens(fixed, file=None if fixed else settings.token_file)


def read_tokens(path: Path) -> tuple[str, ...]:
    """Read a token file: one token, or two of which the first is shown to others.

    Raises:
        FileNotFoundError: there is none.
        OSError: it cannot be read.
        ConfigError: others can read it, or it holds no tokens; says the fix.
    """
    with path.open("rb") as file:
        _check_private(path, os.fstat(file.fileno()))
        lines = file.read(_MAX_BYTES).decode("ascii", "replace").split("\n")
    tokens = tuple(line.strip() for line in lines if line.strip())
    if not tokens or not all("!" <= character <= "~" for character in "".join(tokens)):
        raise ConfigError(f"{path} holds no token; remove it, and a new one is made")
    if len(tokens) > MAX_TOKENS:
        raise ConfigError(f"{path} holds {len(tokens)} tokens; leave {MAX_TOKENS}, the one to show first")
    return tokens


def make_token_file(path: Path) -> bool:
    """Make a token file if there is none; whoever does so at the same time ends up with the same token.

    Returns:
        Whether it was made.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        if path.exists():
            return False
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = _draft(path, (_new_token(),))
        try:
            os.link(draft, path)  # unlike a rename it never replaces somebody else's
        except FileExistsError:
            return False
        finally:
            draft.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot make the token file: {error.strerror}") from None
    return True


def rotate_token_file(path: Path) -> None:
    """Put a new token before the one that was shown until now, which stays valid; an older one is dropped.

    Raises:
        ConfigError: the file cannot be used; says the fix.
    """
    try:
        draft = _draft(path, (_new_token(), read_tokens(path)[0]))
        with suppress(PermissionError):  # the owner stays the same, where this process may say so
            os.chown(draft, path.stat().st_uid, path.stat().st_gid)
        draft.replace(path)
    except OSError as error:
        raise _unusable(path, error) from None


def _new_token() -> str:
    return secrets.token_urlsafe(32)


def _draft(path: Path, tokens: tuple[str, ...]) -> Path:
    draft = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write("".join(f"{token}\n" for token in tokens).encode())
    return draft


def _check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a file that others can read. One of another owner may be readable by a group: that is how we read it."""
    too_much = 0o077 if status.st_uid == os.geteuid() else 0o027
    if stat.S_IMODE(status.st_mode) & too_much:
        raise ConfigError(f"{path} can be read by others; run: chmod 600 {path}")


def _expected(tokens: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(f"Bearer {token}".encode() for token in tokens)


def _unusable(path: Path, error: OSError | RollmillError) -> RollmillError:
    if isinstance(error, RollmillError):
        return error
    return ConfigError(f"token file {path}: {error.strerror}; make one with: rollmill token --init --file {path}")
