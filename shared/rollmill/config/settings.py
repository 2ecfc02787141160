"""Settings are parsed once, in `create_app`, and passed on as values. Nobody else reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.contracts.services import NAME_PATTERN
from rollmill.errors import ConfigError

ENV_PREFIX = "ROLLMILL_"
SETTINGS_FILE = "ROLLMILL_SETTINGS_FILE"


class ServiceSettings(BaseModel):
    """What every service can be told; each service adds its own fields in a subclass.

    Sources, later ones win: defaults, the JSON file named by `ROLLMILL_SETTINGS_FILE`, `ROLLMILL_<FIELD>`
    variables (`ROLLMILL_<FIELD>_FILE` reads the value from a file), arguments.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    name: str = Field(default="", pattern=rf"^$|{NAME_PATTERN}")
    """Name under which the service registers; empty means the entry-point name."""
    head_url: str = ""
    """Registry to register at and to find other services through; empty means neither."""
    advertise_url: str = ""
    """Base URL that other services are given; empty means do not register."""
    token: SecretStr | None = None
    """Bearer token that callers must show and that this service shows to others."""
    session_secret: SecretStr | None = None
    """Key that signs session ids; random at each start when not given."""
    max_body_bytes: int = Field(default=64 * 1024 * 1024, ge=1024)
    request_timeout_seconds: float = Field(default=600.0, gt=0)
    """Longest time that one call may take when the caller sets no deadline of its own."""
    serve_mcp: bool = False
    """A resources server: offer its declared tools at `/mcp` too, for agents that speak the Model Context Protocol.
    Needs the extra `mcp`."""
    max_in_flight: int = Field(default=20_000, ge=1)
    """Requests beyond this number are answered 503 with `Retry-After`."""
    session_idle_seconds: float = Field(default=3600.0, gt=0)
    """Sessions unused for this long are closed."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings of this process.

        Raises:
            ConfigError: lists every wrong value by the name of its variable.
        """
        env = os.environ if environ is None else environ
        values = _file_values(env.get(SETTINGS_FILE))
        for name, info in cls.model_fields.items():
            raw = _env_value(env, ENV_PREFIX + name.upper(), structured=_is_structured(info.annotation))
            if raw is not None:
                values[name] = raw
        return cls.parse(values, where="environment")

    @classmethod
    def parse(cls, values: Mapping[str, JsonValue], *, where: str) -> Self:
        """Validate a mapping without looking at the environment.

        Raises:
            ConfigError: lists every problem with its path below `where`.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            faults = settings_faults(error, where)
            raise ConfigError("; ".join(f"{f['pointer']}: {f['detail']}" for f in faults), errors=faults) from None


def settings_faults(error: ValidationError, where: str) -> list[JsonObject]:
    """Turn a pydantic error into `{pointer, detail}` entries that never repeat the (maybe secret) input."""
    faults = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        path = ".".join([where, *map(str, fault["loc"])])
        detail = "unknown setting" if fault["type"] == "extra_forbidden" else fault["msg"]
        faults.append({"pointer": path, "detail": detail})
    return faults


def _file_values(path: str | None) -> JsonObject:
    if not path:
        return {}
    try:
        values = orjson.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{SETTINGS_FILE}={path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{SETTINGS_FILE}={path}: must hold a JSON object")
    return values


def _is_structured(annotation: object) -> bool:
    """Whether a field takes a list or mapping, which a variable can only hold as JSON text."""
    return any(get_origin(part) in (list, dict) for part in (annotation, *get_args(annotation)))


def _env_value(env: Mapping[str, str], variable: str, *, structured: bool) -> JsonValue:
    raw = env.get(variable)
    if raw is None and (path := env.get(f"{variable}_FILE")):
        try:
            raw = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{variable}_FILE={path}: {error.strerror}") from None
    if raw is None or not structured or raw[:1] not in ("[", "{"):
        return raw
    try:
        return orjson.loads(raw)
    except ValueError as error:
        raise ConfigError(f"{variable}: not valid JSON: {error}") from None
