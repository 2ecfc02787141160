from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, SecretStr, field_validator

from rollmill.client.http import HttpTransport
from rollmill.client.service_client import auth_headers
from rollmill.client.transport import Reply, excerpt
from rollmill.config.addresses import checked_api_key, checked_base_url
from rollmill.config.settings_refs import Incidental
from rollmill.context import REQUEST_ID_HEADER, TRACE_HEADER, get_context
from rollmill.contracts.json import JsonObject, dumps
from rollmill.errors import (
    DeadlineError,
    OverloadedError,
    RollmillError,
    UpstreamError,
    UpstreamTimeoutError,
    is_retryable,
)
from rollmill.openai.results import check_failed
from rollmill.server.agent import Agent, AgentSettings, Episode

_AT_FAULT = frozenset({408, 425, 500, 502, 503, 504})
"""Statuses with which a server says that the same request may succeed later."""
_BUSY = frozenset({429, 503})


class RemoteSettings(AgentSettings):
    """Settings of the remote agent: where it is, and how patiently it is asked."""

    # The api key is an input too: a refused value must not be shown.
    model_config = ConfigDict(hide_input_in_errors=True)

    model: str = ""
    """What the requests name as `model`; empty keeps the request's own. No service of the topology."""
    base_url: Annotated[str, Incidental()]
    """Where the agent's Responses API is, usually ending in `/v1`."""
    api_key: SecretStr | None = None
    """Sent as bearer token; empty means none."""
    offer_tools: bool = False
    """Tell the agent where the session's tools are, as a tool of type `mcp`. The resources server needs
    `serve_mcp: true`, and a URL that the agent can reach."""
    timeout_seconds: Annotated[float, Incidental()] = Field(default=600.0, gt=0)
    """Longest time for one rollout's answer."""
    connect_timeout_seconds: Annotated[float, Incidental()] = Field(default=10.0, gt=0)
    max_answer_bytes: Annotated[int, Incidental()] = Field(default=64 * 1024 * 1024, ge=1024)
    """A larger answer is a failure."""

    _check_base_url = field_validator("base_url")(checked_base_url)
    _check_api_key = field_validator("api_key")(checked_api_key)


class Remote(Agent):
    """Hands the request to an agent outside of Rollmill that speaks the Responses API, and has its answer verified."""

    Settings: ClassVar[type[AgentSettings]] = RemoteSettings

    def __init__(self, settings: RemoteSettings) -> None:
        super().__init__(settings)
        self._remote = settings
        self._key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._transport = HttpTransport(
            connect_timeout_seconds=settings.connect_timeout_seconds, max_body_bytes=settings.max_answer_bytes
        )

    async def shutdown(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        """Return what the remote agent answers.

        Raises:
            RollmillError: it cannot be reached, refuses, fails, takes too long, or answers something else. Its
                `boundary` is `agent`, and `retryable` says whether another attempt can help.
        """
        body = {**request, "model": self._remote.model or request.get("model", "")}
        if self._remote.offer_tools:
            body["tools"] = [*(request.get("tools") or []), episode.mcp_tool()]
        try:
            return _without_token(_response(await self._post(body)))
        except RollmillError as error:
            raise self._told(error) from error

    async def _post(self, body: JsonObject) -> Reply:
        context = get_context()
        left = context.remaining()
        seconds = self._remote.timeout_seconds
        headers = {"content-type": "application/json", **auth_headers(self._key)}
        headers |= {REQUEST_ID_HEADER: context.request_id} if context.request_id else {}
        headers |= {TRACE_HEADER: context.traceparent} if context.traceparent else {}
        own = left is None or seconds < left
        url, timeout = f"{self._remote.base_url}/responses", seconds if own else left
        try:
            return await self._transport.send("POST", url, headers=headers, body=dumps(body), timeout=timeout)
        except UpstreamTimeoutError as error:
            error.extensions["retryable"] = own  # else the rollout's own time is over
            raise

    def _told(self, error: RollmillError) -> RollmillError:
        """Return the error with the name of who failed, and without the key, which a server may repeat."""
        detail = error.detail.replace(self._key, "[api key]") if self._key else error.detail
        told = {"service": "the remote agent", "boundary": "agent", "retryable": is_retryable(error)}
        kept = isinstance(error, OverloadedError | DeadlineError)  # a connection that failed is not the caller's own
        kind = type(error) if kept else UpstreamError
        return kind(detail, **{"upstream_type": error.slug, **error.extensions, **told})


def _response(reply: Reply) -> JsonObject:
    """Read an answer.

    Raises:
        OverloadedError: the agent asks for less load.
        UpstreamError: it failed, or what it answered is no finished response.
    """
    if not reply.ok:
        raise _refusal(reply)
    response = reply.json()
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise UpstreamError(f"the answer is no Responses object: {excerpt(reply.body)}", retryable=False)
    if not all(isinstance(item, dict) for item in response["output"]):
        raise UpstreamError("the answer's output holds something else than items", retryable=False)
    check_failed(response)
    if response.get("status") in ("queued", "in_progress"):
        raise UpstreamError(f"the answer is not finished: its status is {response['status']}", retryable=False)
    return response


def _without_token(response: JsonObject) -> JsonObject:
    """Return a response without the tools of type `mcp` that it repeats from the request: they hold the token."""
    tools = response.get("tools")
    if not isinstance(tools, list):
        return response
    return {**response, "tools": [tool for tool in tools if not isinstance(tool, dict) or tool.get("type") != "mcp"]}


def _refusal(reply: Reply) -> RollmillError:
    detail = f"HTTP {reply.status}: {excerpt(reply.body)}"
    if reply.status in _BUSY:
        wait = reply.headers.get("retry-after", "")
        return OverloadedError(detail, retry_after=float(wait) if wait.isdigit() else 1.0)
    return UpstreamError(detail, upstream_status=reply.status, retryable=reply.status in _AT_FAULT)
