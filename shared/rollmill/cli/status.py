import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.cli.console import emit, emit_json, table, tell
from rollmill.errors import RollmillError, UnauthorizedError

if TYPE_CHECKING:
    from rollmill.contracts.services import Instance
    from rollmill.local.connection import Connection
    from rollmill.local.state import Deployment

TIMEOUT_SECONDS = 5.0


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    head: Annotated[str | None, typer.Option(help="URL of the head; else that of this folder.")] = None,
) -> None:
    """Show the services that are live, and those that should be and are not."""
    from rollmill.local.connection import find_connection
    from rollmill.local.state import StateDir

    state = StateDir.default()
    connection = find_connection(head, state=state)
    deployment = state.load()
    own = deployment if deployment and deployment.head_url == connection.head_url else None
    try:
        services = asyncio.run(live_services(connection))
    except RollmillError as error:
        raise _with_fix(error, connection.head_url) from None
    if as_json:
        emit_json(_as_json(connection.head_url, services, own))
    else:
        tell(f"head {connection.head_url}")
        emit(_as_table(services))
    for line in _gone(own):
        tell(line)


async def live_services(connection: "Connection") -> "list[Instance]":
    """Ask a head for every live instance.

    Raises:
        RollmillError: it cannot be reached, or refused.
    """
    from rollmill.client.http import HttpTransport
    from rollmill.client.service_client import auth_headers
    from rollmill.contracts.services import ServiceList

    transport = HttpTransport(ca_file=connection.ca_file)
    url, headers = f"{connection.head_url}/v1/services", auth_headers(connection.token)
    try:
        reply = await transport.send("GET", url, headers=headers, timeout=TIMEOUT_SECONDS)
        if not reply.ok:
            raise reply.error()
        return ServiceList.model_validate(reply.json()).services
    except ValueError:
        raise RollmillError(f"{connection.head_url} is not a head: its answer is not a list of services") from None
    finally:
        await transport.aclose()


def _with_fix(error: RollmillError, head_url: str) -> RollmillError:
    if isinstance(error, UnauthorizedError):
        return RollmillError(f"the head at {head_url} refused the token; set ROLLMILL_TOKEN to that of its deployment")
    return RollmillError(
        f"no head answers at {head_url} ({error}); start one with: rollmill up -c TOPOLOGY, or name one with --head"
    )


def _as_table(services: "list[Instance]") -> str:
    header = ["SERVICE", "KIND", "INSTANCE", "URL", "STATE", "IN FLIGHT", "LEASE AGE"]
    lines = [
        [s.name, s.kind, s.instance[:8], s.url, s.state, str(s.in_flight), f"{s.lease_age_seconds:.1f} s"]
        for s in services
    ]
    return table(header, lines)


def _as_json(head_url: str, services: "list[Instance]", own: "Deployment | None") -> dict[str, object]:
    processes = [
        {"label": p.label, "pid": p.pid, "running": p.ref.is_running(), "log": p.log}
        for p in (own.processes if own else [])
    ]
    return {
        "head_url": head_url,
        "services": [service.model_dump(mode="json") for service in services],
        "processes": processes,
    }


def _gone(own: "Deployment | None") -> list[str]:
    from rollmill.local.launcher import shown_path

    gone = [process for process in own.processes if not process.ref.is_running()] if own else []
    return [f"{process.label} does not run any more (log: {shown_path(process.log)})" for process in gone]
