"""Services that speak HTTPS with a certificate made here, and clients that check it."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import trustme

from rollmill.client.control import CollectorClient
from rollmill.client.http import HttpTransport
from rollmill.client.tls import check_server_files, client_tls
from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import dumps
from rollmill.errors import ConfigError, ConnectError, RollmillError

if TYPE_CHECKING:
    from tests.integration.conftest import Workplace

TOPOLOGY = """
services:
  policy: {kind: model, use: scripted}
  weather: {kind: resources, use: weather}
  weather_agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: weather}}
"""
TASK = {"responses_create_params": {"input": "What is the weather in Paris?"}, "agent_ref": {"name": "weather_agent"}}


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    parts = {"CERT": "cert.pem", "KEY": "key.pem", "CA": "ca.pem"}
    return {f"ROLLMILL_TLS_{part}_FILE": str(tmp_path / name) for part, name in parts.items()}


def test_every_hop_of_a_deployment_is_https_and_checked(
    workplace: "Workplace", certificates: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "t.yaml").write_text(TOPOLOGY)
    (tmp_path / "tasks.jsonl").write_bytes(dumps(TASK) + b"\n")
    workplace.environ |= certificates
    records = workplace.up()
    urls = {label: record.url for label, record in records.items()}
    assert all(url.startswith("https://127.0.0.1:") for url in urls.values())

    collected = workplace.run("collect", "-c", "t.yaml", "--input", "tasks.jsonl", "--output", "x.jsonl")
    services = json.loads(workplace.run("status", "--json").stdout)["services"]
    token = workplace.run("token").stdout.strip()
    with CollectorClient(urls["collector"], token=token, ca_file=tmp_path / "ca.pem") as client:
        assert client.runs() == []

    assert collected.returncode == 0, collected.stderr
    assert "using the services at https://" in collected.stderr
    assert len((tmp_path / "x.jsonl").read_bytes().splitlines()) == 1
    assert {service["url"] for service in services} == {url for label, url in urls.items() if label != "head"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(urls["head"] + "/livez")
    with pytest.raises(httpx.TransportError):
        httpx.get(urls["head"].replace("https", "http") + "/livez")
    refused = asyncio.run(error_of(urls["head"] + "/livez"))
    assert (type(refused), refused.extensions) == (ConnectError, {"retryable": False})
    assert "certificate verify failed" in refused.detail


async def error_of(url: str) -> RollmillError:
    """What a client says that does not know the authority."""
    transport = HttpTransport()
    try:
        with pytest.raises(RollmillError) as caught:
            await transport.send("GET", url, headers={})
    finally:
        await transport.aclose()
    return caught.value


def test_a_certificate_and_its_key_go_together(certificates: dict[str, str], workplace: "Workplace") -> None:
    del certificates["ROLLMILL_TLS_KEY_FILE"]
    with pytest.raises(ConfigError, match="tls_cert_file and tls_key_file go together"):
        ServiceSettings.from_environment(certificates)
    (workplace.path / "t.yaml").write_text(TOPOLOGY)

    done = workplace.run("up", "-c", "t.yaml", **certificates)

    assert (done.returncode, "ROLLMILL_TLS_KEY_FILE go together" in done.stderr) == (1, True)


def test_files_that_are_no_certificates_are_told(certificates: dict[str, str], tmp_path: Path) -> None:
    key = Path(certificates["ROLLMILL_TLS_KEY_FILE"])
    with pytest.raises(ConfigError, match=r"key\.pem holds no certificates"):
        client_tls(key)
    with pytest.raises(ConfigError, match=r"none\.pem: No such file"):
        client_tls(tmp_path / "none.pem")
    with pytest.raises(ConfigError, match="no certificate with its key"):
        check_server_files(key, key)
    with pytest.raises(ConfigError, match="No such file"):
        check_server_files(tmp_path / "none.pem", key)
