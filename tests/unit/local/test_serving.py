import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from rollmill.config.settings import ServiceSettings
from rollmill.errors import ConfigError
from rollmill.local.serving import placed, serve
from rollmill.local.sockets import bound_address, listen


@contextmanager
def running(use: str, *options: str, **settings: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run `serve_process` for a service, and stop it at the end; yields the process and its URL."""
    environ = os.environ | {f"ROLLMILL_{name.upper()}": value for name, value in settings.items()}
    with listen("127.0.0.1", 0) as listener:
        command = [sys.executable, "-m", "rollmill.local.serve_process", use, "--fd", str(listener.fileno())]
        url = f"http://127.0.0.1:{bound_address(listener)[1]}"
        process = subprocess.Popen(
            [*command, *options],
            env=environ,
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    with process:
        try:
            yield process, url
        finally:
            process.kill()


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_a_service_serves_on_the_socket_it_was_given_and_ends_in_order_when_asked(tiny_services: Path) -> None:
    with running("tiny_services:Echo", token="t0k3n", name="echo") as (process, url):
        ready = httpx.get(f"{url}/readyz", timeout=20)
        refused = httpx.post(f"{url}/shout", json={"text": "hi"})
        answer = httpx.post(f"{url}/shout", json={"text": "hi"}, headers={"Authorization": "Bearer t0k3n"})
        version = httpx.get(f"{url}/version", headers={"Authorization": "Bearer t0k3n"}).json()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)

    assert (ready.status_code, refused.status_code) == (204, 401)
    assert (answer.status_code, answer.text) == (200, "HI")
    assert (version["name"], version["kind"]) == ("echo", "resources")
    assert "server" not in answer.headers
    assert "date" not in answer.headers
    assert process.returncode == 0
    assert [event for event in events(log) if event in ("serving", "draining", "stopped")] == [
        "serving",
        "draining",
        "stopped",
    ]


def test_ctrl_c_ends_a_service_in_order_too(tiny_services: Path) -> None:
    with running("tiny_services:Echo") as (process, url):
        httpx.get(f"{url}/readyz", timeout=20)
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=20) == 0


def test_a_service_ends_when_the_process_that_started_it_does(tiny_services: Path) -> None:
    with running("tiny_services:Echo", "--with-parent") as (process, url):
        httpx.get(f"{url}/readyz", timeout=20)
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(timeout=20) == 0


def test_a_service_that_cannot_be_configured_says_why_in_one_line(tiny_services: Path) -> None:
    with running("tiny_services:Echo", max_in_flight="none") as (process, _):
        _, log = process.communicate(timeout=20)

    assert process.returncode == 1
    (line,) = [json.loads(line) for line in log.splitlines()]
    assert (line["event"], line["level"]) == ("service_failed", "error")
    assert "max_in_flight" in line["detail"]


def test_a_service_that_cannot_start_ends_with_its_traceback_in_the_log(tiny_services: Path) -> None:
    with running("tiny_services:Broken") as (process, _):
        _, log = process.communicate(timeout=20)

    assert process.returncode == 3
    assert "RuntimeError: no database here" in log


def test_what_is_no_app_of_ours_is_refused(tiny_services: Path) -> None:
    with running("tiny_services:not_ours") as (process, _):
        _, log = process.communicate(timeout=20)

    assert process.returncode == 1
    assert "not an app made by build_app" in log


def test_a_service_that_is_unknown_changes_nothing_in_the_process() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with pytest.raises(ConfigError, match="unknown service 'no_such'"):
        serve("no_such")

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert gc.isenabled()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::"])
def test_nothing_listens_for_other_machines_without_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="ROLLMILL_TOKEN"):
        placed(ServiceSettings(), "weather", host, 80)

    settings = placed(ServiceSettings(token=SecretStr("t")), "weather", host, 80)
    assert settings.advertise_url.endswith(":80")

    with pytest.raises(ConfigError, match="ROLLMILL_TOKEN"):
        placed(ServiceSettings(token=SecretStr("")), "weather", host, 80)


def test_a_service_that_is_told_no_token_asks_for_the_one_of_its_folder(tiny_services: Path, tmp_path: Path) -> None:
    environ = os.environ | {"ROLLMILL_HOME": str(tmp_path / "home")}
    with free_port() as port:
        command = [sys.executable, "-m", "rollmill", "serve", "tiny_services:Echo", "--port", str(port)]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            transport = httpx.HTTPTransport(retries=9)  # of connecting: it takes a moment to start
            with httpx.Client(transport=transport, timeout=20) as client:
                assert client.get(f"{url}/readyz").status_code == 204
                refused = client.post(f"{url}/shout", json={"text": "hi"})
                token = (tmp_path / "home" / "token").read_text().strip()
                answer = client.post(f"{url}/shout", json={"text": "hi"}, headers={"Authorization": f"Bearer {token}"})
        finally:
            process.kill()
            _, log = process.communicate()

    assert (refused.status_code, answer.text) == (401, "HI")
    assert "token_made" in log
    assert token not in log


@contextmanager
def free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found.getsockname()[1]


def test_a_service_is_given_out_under_the_address_it_listens_on_unless_told_otherwise() -> None:
    told = ServiceSettings(advertise_url="http://outside:1", name="mine")

    assert placed(ServiceSettings(), "weather", "127.0.0.1", 80).advertise_url == "http://127.0.0.1:80"
    assert placed(told, "weather", "127.0.0.1", 80) == told


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("weather", "weather"),
        ("my_package.weather.app:create_app", "weather"),
        ("my_module:Weather", "my_module"),
        ("app:create_app", "service"),
    ],
)
def test_a_service_without_a_name_takes_that_of_what_it_is(use: str, name: str) -> None:
    assert placed(ServiceSettings(), use, "127.0.0.1", 80).name == name


def test_a_port_in_use_is_an_error_of_the_configuration(tiny_services: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "rollmill", "serve", "tiny_services:Echo", "--port", str(port)],
            capture_output=True,
            text=True,
            check=False,
        )

    assert result.returncode == 1
    assert result.stderr.startswith(f"error: port {port} of 127.0.0.1 is in use")
    assert "--port" in result.stderr


def test_the_command_takes_its_port_from_the_environment_too() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = str(bound_address(taken)[1])
        environ = {**os.environ, "ROLLMILL_HOST": "127.0.0.1", "ROLLMILL_PORT": port}
        command = [sys.executable, "-m", "rollmill", "serve", "head"]
        refused = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    assert refused.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in refused.stderr
