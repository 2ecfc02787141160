from typing import Annotated, Literal

from pydantic import ConfigDict, Field, SecretStr, field_validator

from rollmill.config.addresses import checked_api_key, checked_base_url
from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import Incidental
from rollmill.contracts.json import JsonObject


class OpenAICompatibleSettings(ServiceSettings):
    """Which engine answers, and how patiently it is asked."""

    # The api key is an input too: a refused value must not be shown.
    model_config = ConfigDict(hide_input_in_errors=True)

    base_url: Annotated[str | list[str], Incidental()]
    """Where the engine's API is, usually ending in `/v1`. Several are replicas of one engine."""
    api_key: SecretStr | None = None
    """Sent as bearer token; empty means none."""
    model: str = ""
    """Replaces the `model` of every request; empty keeps the request's own."""
    upstream: Literal["responses", "chat"] = "chat"
    """Which API the engine is asked through; callers may use either."""
    timeout_seconds: Annotated[float, Incidental()] = Field(default=600.0, gt=0)
    """Longest time for one answer, retries included; for a stream, until it begins and between its parts."""
    connect_timeout_seconds: Annotated[float, Incidental()] = Field(default=10.0, gt=0)
    max_retries: Annotated[int, Incidental()] = Field(default=3, ge=0, le=20)
    """How often one request is sent again after an overload, a server error or a broken connection."""
    max_answer_bytes: Annotated[int, Incidental()] = Field(default=64 * 1024 * 1024, ge=1024)
    """Longest answer, or event of a streamed one, that is accepted."""
    retry_base_seconds: Annotated[float, Incidental()] = Field(default=0.5, ge=0)
    """Upper end of the first random delay; it doubles with each retry."""
    retry_cap_seconds: Annotated[float, Incidental()] = Field(default=20.0, ge=0)
    """Upper end of every random delay."""
    extra_body: JsonObject = Field(default_factory=dict)
    """Fields added to each request that does not set them itself."""

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, value: str | list[str]) -> str | list[str]:
        urls = [value] if isinstance(value, str) else value
        cleaned = [checked_base_url(url) for url in urls or [""]]
        return cleaned[0] if isinstance(value, str) else cleaned

    @field_validator("api_key")
    @classmethod
    def _check_api_key(cls, value: SecretStr | None) -> SecretStr | None:
        return checked_api_key(value)

    @property
    def base_urls(self) -> list[str]:
        """All base URLs, at least one."""
        return [self.base_url] if isinstance(self.base_url, str) else self.base_url
