import asyncio
from collections.abc import Sequence
from pathlib import Path

from rollmill.artifacts.reader import read_jsonl
from rollmill.client.directory import StaticDirectory
from rollmill.client.http import HttpTransport
from rollmill.client.service_client import ServiceClient
from rollmill.contracts.json import JsonObject
from rollmill.contracts.rows import Row
from rollmill.contracts.services import Instance
from rollmill.errors import RollmillError
from rollmill.server.in_process import run_in_process
from rollmill.server.resources import Resources
from rollmill.testing.conformance.checks import CHECKS, Subject
from rollmill.testing.conformance.declarations import description_faults
from rollmill.testing.conformance.fixtures import Fixture, read_fixtures
from rollmill.testing.conformance.probe import Probe
from rollmill.testing.conformance.report import Check, judged

TIMEOUT_SECONDS = 60.0


async def check_service(
    client: ServiceClient,
    name: str,
    *,
    tasks: Sequence[Row] = (),
    fixtures: Sequence[Fixture] = (),
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Check]:
    """Check a resources server that runs, one line for each check.

    Args:
        client: reaches the server.
        name: under which the client knows it.
        tasks: rows that it must take.
        fixtures: rollouts whose reward is known; numbers in them are those of `tasks`, from 0.
        timeout_seconds: longest time for one call.
    """
    probe = Probe(client, name, timeout_seconds)
    try:
        await probe.get("/readyz")
        description, mode = await probe.get("/version"), await probe.get("/reverify_mode")
    except RollmillError as error:
        return [Check(name, "description", "fail", error.detail)]
    found = judged(list(description_faults(description, mode)), f"resources, reverify_mode {mode}")
    checks = [Check(name, "description", found.status, found.detail)]
    if found.status == "fail":
        return checks
    capabilities: JsonObject = description["capabilities"]
    subject = Subject(probe, capabilities, tasks, fixtures)
    for title, check in CHECKS.items():
        try:
            found = await check(subject)
        except RollmillError as error:
            found = judged([error.detail], "")
        checks.append(Check(name, title, found.status, found.detail))
    return checks


async def check_url(
    url: str,
    *,
    token: str = "",
    tasks: Sequence[Row] = (),
    fixtures: Sequence[Fixture] = (),
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> list[Check]:
    """Check a resources server behind a URL, in whatever language it is written; see `check_service`.

    Args:
        url: base URL.
        token: bearer token that it asks for, if any.
    """
    instance = Instance(name=url, instance=url, kind="resources", url=url.rstrip("/"))
    transport = HttpTransport()
    try:
        client = ServiceClient(transport, StaticDirectory([instance]), token=token)
        return await check_service(client, url, tasks=tasks, fixtures=fixtures, timeout_seconds=timeout_seconds)
    finally:
        await transport.aclose()


def assert_conforms(resources: Resources, *, tasks: str | Path, fixtures: str | Path) -> None:
    """Check an environment in this process: the one line that its own tests need.

    Args:
        resources: the environment.
        tasks: its example tasks, a JSONL file.
        fixtures: its `fixtures.yaml`.

    Raises:
        AssertionError: a check failed; tells which and why.
        InputError: a file cannot be read; names its place.
    """
    checks = asyncio.run(_checked(resources, list(read_jsonl(tasks)), read_fixtures(fixtures)))
    failed = [f"{check.name}: {check.detail}" for check in checks if check.status == "fail"]
    if failed:
        raise AssertionError("\n".join(failed))


async def _checked(resources: Resources, tasks: Sequence[Row], fixtures: Sequence[Fixture]) -> list[Check]:
    from rollmill.server import resources_app

    name = resources.settings.name or type(resources).__name__
    async with run_in_process({name: resources_app(resources)}) as client:
        return await check_service(client, name, tasks=tasks, fixtures=fixtures)
