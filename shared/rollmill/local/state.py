"""The folder in which one deployment on this machine keeps its token, its settings files, its logs and its record."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from pydantic import Field, ValidationError

from rollmill.config.tokens import make_token_file, read_tokens
from rollmill.contracts.json import JsonObject, dumps
from rollmill.contracts.services import Kind
from rollmill.contracts.wire import WireModel
from rollmill.errors import ConfigError, ConflictError
from rollmill.local.processes import ProcessRef

HOME_VARIABLE: Final = "ROLLMILL_HOME"
STAGES: Final[tuple[Kind, ...]] = ("head", "model", "resources", "agent", "profiler", "collector")
"""Kinds in the order of starting: each needs only those before it. Stopping goes the other way."""


class ProcessRecord(WireModel):
    """One service process that `up` started."""

    label: str
    """Name of the service, with `@` and the number of the replica when there are several."""
    name: str
    kind: Kind
    pid: int
    started: str
    """Tells the process from a later one with the same number."""
    url: str
    log: str
    """Path of its log file."""

    @property
    def ref(self) -> ProcessRef:
        """The process itself."""
        return ProcessRef(self.pid, self.started)


class Deployment(WireModel):
    """What `up` started, as `services.json` tells it."""

    topology: str
    """Path of the topology file."""
    head_url: str
    launcher_pid: int
    """The process of `up`: it watches over the services when it stays in the foreground."""
    launcher_started: str
    processes: list[ProcessRecord] = Field(default_factory=list)

    @property
    def launcher(self) -> ProcessRef:
        """The process of `up`."""
        return ProcessRef(self.launcher_pid, self.launcher_started)

    def is_alive(self) -> bool:
        """Say whether any process of it still runs."""
        return any(process.ref.is_running() for process in self.processes)

    def stop_order(self) -> list[list[ProcessRef]]:
        """Group the processes in the order in which they are to end."""
        return [[p.ref for p in self.processes if p.kind == kind] for kind in reversed(STAGES)]


class StateDir:
    """The state folder; made when something is first written to it, readable by its owner only."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def default(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return the folder named by `ROLLMILL_HOME`, else `.rollmill` in the current folder."""
        env = os.environ if environ is None else environ
        return cls(Path(env.get(HOME_VARIABLE) or ".rollmill").absolute())

    def token(self) -> str:
        """Return the token of this folder, and make one when there is none yet.

        Raises:
            ConfigError: the file is readable by others, or holds no token; says the fix.
        """
        self._make()
        make_token_file(self.token_path)
        return read_tokens(self.token_path)[0]

    def existing_token(self) -> str | None:
        """Return the token, or None when there is none yet; raises as `token` does."""
        try:
            return read_tokens(self.token_path)[0]
        except FileNotFoundError:
            return None

    def write_settings(self, label: str, values: JsonObject) -> Path:
        """Write the settings file of one process, which nobody else can read."""
        path = self._folder("settings") / f"{label}.json"
        path.unlink(missing_ok=True)
        _write_private(path, dumps(values))
        return path

    def remove_settings(self) -> None:
        """Remove all settings files: they hold secrets, and nothing needs them any more."""
        for path in (self.path / "settings").glob("*.json"):
            path.unlink(missing_ok=True)

    def log_path(self, label: str) -> Path:
        """Name the log file of one process; its folder exists afterwards."""
        return self._folder("logs") / f"{label}.log"

    def save(self, deployment: Deployment) -> None:
        """Record what was started, in one step."""
        self._make()
        draft = self._record_path.with_suffix(".json.new")
        draft.unlink(missing_ok=True)
        _write_private(draft, deployment.model_dump_json(indent=1).encode())
        draft.replace(self._record_path)

    def load(self) -> Deployment | None:
        """Return what was started last and not taken down since, whether or not it still runs.

        Raises:
            ConfigError: the record cannot be understood; says the fix.
        """
        try:
            return Deployment.model_validate_json(self._record_path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            raise ConfigError(
                f"{self._record_path} is not a record of this version; stop its processes by hand, then remove it"
            ) from None

    def forget(self) -> None:
        """Remove the record."""
        self._record_path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from starting a deployment in this folder.

        Raises:
            ConflictError: someone else is at it.
        """
        self._make()
        with (self.path / "lock").open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(
                    f"another `rollmill up` is at work in {self.path}; rollmill down stops it"
                ) from None
            yield

    @property
    def token_path(self) -> Path:
        """The file with the token."""
        return self.path / "token"

    @property
    def _record_path(self) -> Path:
        return self.path / "services.json"

    def _make(self) -> None:
        if self.path.is_dir():
            return
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folder often lies inside somebody's repository, and a token has no place there.
        (self.path / ".gitignore").write_text("*\n", encoding="utf-8")

    def _folder(self, name: str) -> Path:
        self._make()
        folder = self.path / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
