"""Runs one service in this process, over the network."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypeVar

import structlog
import uvicorn

from rollmill._version import __version__
from rollmill.client.file_limit import raise_file_limit
from rollmill.client.tls import check_server_files
from rollmill.config.loading import find_service
from rollmill.config.secret_values import long_enough, secret_values
from rollmill.config.settings import ServiceSettings
from rollmill.config.tokens import make_token_file, service_tokens
from rollmill.errors import ConfigError
from rollmill.local.connection import is_loopback
from rollmill.local.http_protocol import BoundedHttpProtocol
from rollmill.local.memory import settle_memory
from rollmill.local.sockets import BACKLOG, base_url, bound_address, listen
from rollmill.observability.logging import configure_logging
from rollmill.observability.tracing import opened_tracer
from rollmill.server.app import ServiceApp
from rollmill.server.runtime import Runtime

log = structlog.get_logger(__name__)

KEEP_ALIVE_SECONDS: Final = 75
"""Longer than our client keeps an idle connection, so that it is never the server that closes one in use."""
DRAIN_SECONDS: Final = 30
"""Calls in flight may take this long to finish once the process is asked to stop."""

Settings = TypeVar("Settings", bound=ServiceSettings)


def serve(
    use: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    listener: socket.socket | None = None,
    json_logs: bool = True,
    token_file: Path | None = None,
) -> None:
    """Serve one service until the process is asked to stop; its settings come from the environment.

    Args:
        use: entry-point name, or `module:attribute`.
        host: interface to listen on.
        port: 0 lets the system choose a free one.
        listener: a socket that already listens; host and port are then those of the socket.
        json_logs: log JSON lines, not text for a person.
        token_file: where the token is when the settings have none; made when it does not exist.

    Raises:
        ConfigError: the service cannot be found, told or reached as asked.
        SystemExit: it was asked to stop (0), or could not start (3).
    """
    definition = find_service(use)
    settings = definition.settings_type.from_environment()
    if not service_tokens(settings):
        settings = settings.model_copy(update={"token_file": token_file})
    tokens, hidden = service_tokens(settings), secret_values(settings)
    configure_logging(settings.log_level, json=json_logs, hide=lambda: (*hidden, *long_enough(tokens.known)))
    with listener or listen(host, port) as bound:
        settings = placed(settings, use, *bound_address(bound))
        if tokens.file is not None and make_token_file(tokens.file):
            log.info("token_made", path=str(tokens.file))
        _ = tokens.valid  # tells what is wrong with the file
        app = definition.factory(settings)
        if not isinstance(app, ServiceApp):
            raise ConfigError(f"{use!r}: its factory returns {type(app).__name__}, not an app made by build_app")
        raise_file_limit()
        settle_memory()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _leave)
        log.info("serving", name=settings.name, kind=app.runtime.kind, url=settings.advertise_url, version=__version__)
        with opened_tracer(os.environ, settings.name) as app.runtime.tracer:
            _Server(_config(app), app.runtime).run(sockets=[bound])


def placed(settings: Settings, use: str, host: str, port: int) -> Settings:
    """Fill in what follows from where a service listens: its name and the URL that others are given.

    Raises:
        ConfigError: anybody could reach it, and nothing protects it.
    """
    if not service_tokens(settings) and not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so a token is needed: set ROLLMILL_TOKEN or "
            "ROLLMILL_TOKEN_FILE, or listen on 127.0.0.1"
        )
    tls = settings.tls_cert_file is not None
    url = settings.advertise_url or base_url(host, port, head_url=settings.head_url, tls=tls)
    return settings.model_copy(update={"name": settings.name or _default_name(use), "advertise_url": url})


def _default_name(use: str) -> str:
    """The entry-point name; of `my_package.weather.app:create_app` the last telling part, `weather`."""
    if ":" not in use:
        return use
    parts = use.partition(":")[0].split(".")
    telling = [part.strip("_") for part in parts if part.strip("_") not in ("", "app")]
    return telling[-1] if telling else "service"


def _config(app: ServiceApp) -> uvicorn.Config:
    cert, key = app.runtime.settings.tls_cert_file, app.runtime.settings.tls_key_file
    if cert is not None and key is not None:
        check_server_files(cert, key)
    return uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="on",
        loop="uvloop",
        http=BoundedHttpProtocol,
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )


class _Server(uvicorn.Server):
    """Tells the service that it is to stop, so that the head hears of it while calls in flight finish."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        log.info("stopped")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A signal handler runs between any two instructions, so the loop has to do this at a time of its own.
        if not self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._drain)
        super().handle_exit(sig, frame)

    def _drain(self) -> None:
        log.info("draining")
        self._runtime.drain()


def _leave(_: int, __: FrameType | None) -> NoReturn:
    # Before the server runs, and after it has stopped: uvicorn then raises the signal again.
    raise SystemExit(0)
