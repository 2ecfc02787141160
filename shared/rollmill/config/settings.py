"""Settings are parsed once, in `create_app`, and passed on as values. Nobody else reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self, get_args, get_origin

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

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
    token_file: Path | None = None
    """File with the token instead, private to its owner. It may hold two, one a line: both are accepted, the first is
    shown to others. It is read again when it changes."""
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
    tls_cert_file: Path | None = None
    """Certificate chain (PEM) to serve HTTPS with."""
    tls_key_file: Path | None = None
    """Its private key (PEM)."""
    tls_ca_file: Path | None = None
    """Authorities (PEM) that other services' certificates are checked against, instead of the system's."""
    log_level: str = Field(default="INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$")

    @field_validator("token_file", "tls_cert_file", "tls_key_file", "tls_ca_file", mode="before")
    @classmethod
    def _empty_is_none(cls, path: JsonValue) -> JsonValue:
        return path or None  # what a variable is that is set to nothing

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        return self

    @field_validator("head_url", "advertise_url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if "@" in url:
            raise ValueError("must not hold a user or password: services show each other the token")
        return url

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read the settings of this process.

        Raises:
            ConfigError: lists every wrong value by the name of its variable.
        """
        env = os.environ if environ is None else environ
        values = _file_values(env.get(SETTINGS_FILE))
        for name, info in cls.model_fields.items():
            variable = ENV_PREFIX + name.upper()
            raw = env.get(variable)
            if raw is None and f"{name}_file" not in cls.model_fields:
                raw = _file_value(env, f"{variable}_FILE")
            raw = _parsed(raw, variable) if _is_structured(info.annotation) else raw
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
    """Whether a field takes a list, a mapping or a group, which a variable can only hold as JSON text."""
    parts = (annotation, *get_args(annotation))
    return any(get_origin(part) in (list, dict) or _is_group(part) for part in parts)


def _is_group(part: object) -> bool:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _file_value(env: Mapping[str, str], variable: str) -> str | None:
    path = env.get(variable)
    if not path:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{variable}={path}: {error.strerror}") from None


def _parsed(raw: str | None, variable: str) -> JsonValue:
    """A list or mapping, if the text looks like one; else the text."""
    if raw is None or raw[:1] not in ("[", "{"):
        return raw
    try:
        return orjson.loads(raw)
    except ValueError as error:
        raise ConfigError(f"{variable}: not valid JSON: {error}") from None
