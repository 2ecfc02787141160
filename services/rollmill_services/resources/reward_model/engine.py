import asyncio
import random
from collections.abc import Sequence

from rollmill.client.retry import RetryPolicy, retry_delay
from rollmill.client.transport import Reply, Transport, excerpt, reply_error
from rollmill.context import get_context
from rollmill.contracts.json import dumps
from rollmill.errors import ConfigError, ConnectError, OverloadedError, RollmillError, UpstreamError
from rollmill_services.resources.reward_model.dialects import Dialect
from rollmill_services.resources.reward_model.rendering import Rendered
from rollmill_services.resources.reward_model.settings import RewardModelSettings

_BUSY = (429, 502, 503)
_CAP_SECONDS = 10.0


class Engine:
    """Scores batches through an engine's HTTP API.

    Args:
        transport: carries the calls.
        dialect: the engine's JSON.
        settings: where it is, its key, how patiently it is asked.
        retry_base_seconds: upper end of the first delay.
    """

    def __init__(
        self,
        transport: Transport,
        dialect: Dialect,
        settings: RewardModelSettings,
        *,
        retry_base_seconds: float = 0.2,
    ) -> None:
        self._transport = transport
        self._dialect = dialect
        self._url = settings.base_url + dialect.path
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout = settings.score_timeout_seconds
        self._policy = RetryPolicy(settings.max_retries + 1, retry_base_seconds, _CAP_SECONDS)

    async def outputs(self, batch: Sequence[Rendered], *, raw: bool = True) -> list[list[float]]:
        """Return the outputs of each conversation; `raw=False` asks for the engine's own activation.

        Raises:
            OverloadedError: the engine is still busy after the retries.
            UpstreamError: it refused or failed; `retryable` says whether the same may succeed later.
            UpstreamTimeoutError: it took too long.
        """
        body = dumps(self._dialect.body(batch, raw=raw))
        attempt = 0
        while True:
            attempt += 1
            try:
                reply = await self._send(body)
            except RollmillError as error:
                delay = retry_delay(error, attempt=attempt, has_key=True, policy=self._policy, uniform=random.uniform)
                if delay is None:
                    raise
            else:
                return self._dialect.outputs(reply.json(), len(batch))
            await asyncio.sleep(delay)

    async def _send(self, body: bytes) -> Reply:
        seconds = get_context().sooner(self._timeout).remaining()
        reply = await self._transport.send("POST", self._url, headers=self._headers, body=body, timeout=seconds)
        if reply.status == 200:
            return reply
        told = f"the engine answered {reply.status}: {excerpt(reply.body)}"
        if reply.status in _BUSY:
            wait = reply_error(reply.status, reply.headers, b"").retry_after
            raise OverloadedError(told, **({} if wait is None else {"retry_after": wait}))
        raise UpstreamError(told, upstream_status=reply.status, retryable=reply.status >= 500)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


class RemoteWorker:
    """One request at a time to an engine; several of them make its concurrency."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self._engine = engine

    async def outputs(self, batch: Sequence[Rendered]) -> list[list[float]]:
        """See `Worker.outputs`."""
        return await self._engine.outputs(batch)

    async def close(self) -> None:
        """Close the engine's connections; closing twice is no error."""
        await self._engine.close()


async def count_raw_outputs(engine: Engine, dialect: Dialect, probes: Sequence[Rendered]) -> int:
    """Ask for a few scores and make sure that they are scores; return how many outputs each has.

    An engine that squashes its scores would flatten every large reward to the same number.

    Raises:
        ConfigError: the engine cannot be asked, or answers probabilities.
    """
    try:
        raw = await engine.outputs(probes)
        squashed = await engine.outputs(probes, raw=False) if dialect.has_switch else raw
    except RollmillError as error:
        if isinstance(error, OverloadedError | ConnectError):
            raise
        raise ConfigError(f"the engine cannot score: {error.detail}") from error
    values = [value for row in raw for value in row]
    if dialect.has_switch:
        wrong = raw == squashed and all(0.0 <= value <= 1.0 for value in values)
    else:
        wrong = all(abs(sum(row) - 1.0) < 1e-4 and min(row) >= 0.0 for row in raw)
    if wrong:
        raise ConfigError(
            "the engine answers probabilities instead of scores: its model or its version ignores the request for raw "
            "scores; upgrade it, or serve the model with problem_type: regression"
        )
    return len(raw[0])
