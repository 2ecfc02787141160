import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from rollmill.local import spawning
from rollmill.local.processes import process_ref
from rollmill.local.sockets import bound_address, listen
from rollmill.local.spawning import (
    Child,
    ExecSpawner,
    ForkSpawner,
    Spawner,
    StartOrder,
    new_spawner,
    open_log,
    service_environment,
)

AUTH = {"Authorization": "Bearer t0k3n"}
linux = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")


@pytest.fixture(params=["exec", pytest.param("fork", marks=linux)])
def spawner(request: pytest.FixtureRequest, tiny_services: Path) -> Iterator[Spawner]:
    environment = service_environment(os.environ | {"OTHER_KEY": "hunter2"})
    made: Spawner = ExecSpawner(environment) if request.param == "exec" else ForkSpawner(environment)
    with made:
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


class Started:
    """One process that a test started, with its URL and its log."""

    def __init__(self, spawner: Spawner, folder: Path, use: str, *, with_parent: bool = False) -> None:
        settings = folder / "settings.json"
        settings.write_text(json.dumps({"token": "t0k3n", "name": "echo"}))
        self.log = folder / "echo.log"
        self.input, stdin = os.pipe()[::-1]
        log = open_log(self.log)
        with listen("127.0.0.1", 0) as listener:
            self.url = f"http://127.0.0.1:{bound_address(listener)[1]}"
            order = StartOrder("echo", use, str(settings), with_parent)
            self.child: Child = spawner.start(order, listener=listener, stdin=stdin, log=log)
        os.close(stdin)
        os.close(log)

    def call(self, tool: str, body: Mapping[str, str]) -> httpx.Response:
        return httpx.post(f"{self.url}/{tool}", json=body, headers=AUTH, timeout=20)

    def ended(self) -> int:
        wait_until(lambda: self.child.poll() is not None)
        os.close(self.input)
        return self.child.poll() or 0


def test_a_process_serves_and_tells_how_it_ended(spawner: Spawner, tmp_path: Path) -> None:
    echo = Started(spawner, tmp_path, "tiny_services:Echo")

    assert echo.call("shout", {"text": "hi"}).text == "HI"
    assert echo.child.poll() is None
    os.kill(echo.child.pid, signal.SIGTERM)

    assert echo.ended() == 0
    assert echo.child.poll() == 0


def test_the_end_of_its_input_ends_a_process_that_is_to_end_with_its_parent(spawner: Spawner, tmp_path: Path) -> None:
    echo = Started(spawner, tmp_path, "tiny_services:Echo", with_parent=True)
    echo.call("shout", {"text": "hi"})

    os.close(echo.input)
    echo.input = os.open(os.devnull, os.O_RDONLY)

    assert echo.ended() == 0


def test_exit_codes_and_signals_are_told_apart(spawner: Spawner, tmp_path: Path) -> None:
    assert Started(spawner, tmp_path, "tiny_services:Quitter").ended() == 7
    killed = Started(spawner, tmp_path, "tiny_services:Echo")
    with pytest.raises(httpx.HTTPError):
        killed.call("die", {})

    assert killed.ended() == -signal.SIGKILL


def test_a_process_sees_no_secret_in_its_arguments_and_no_foreign_variable(spawner: Spawner, tmp_path: Path) -> None:
    echo = Started(spawner, tmp_path, "tiny_services:Echo")

    seen = echo.call("environment", {}).json()
    arguments = Path(f"/proc/{echo.child.pid}/cmdline").read_bytes()
    environment = Path(f"/proc/{echo.child.pid}/environ").read_bytes()
    os.kill(echo.child.pid, signal.SIGTERM)
    echo.ended()

    assert "ROLLMILL_SETTINGS_FILE" in seen
    assert "OTHER_KEY" not in seen
    assert b"t0k3n" not in arguments + environment
    assert b"hunter2" not in environment


def test_everything_that_a_process_says_is_in_its_private_log(spawner: Spawner, tmp_path: Path) -> None:
    broken = Started(spawner, tmp_path, "tiny_services:Broken")

    assert broken.ended() == 3
    assert "no database here" in broken.log.read_text()
    assert broken.log.stat().st_mode & 0o077 == 0


@linux
def test_forked_processes_outlive_the_server_that_made_them(tiny_services: Path, tmp_path: Path) -> None:
    with ForkSpawner(service_environment(os.environ)) as spawner:
        echo = Started(spawner, tmp_path, "tiny_services:Echo")
        ref = process_ref(echo.child.pid)

    assert echo.call("shout", {"text": "hi"}).text == "HI"
    ref.send(signal.SIGTERM)
    wait_until(lambda: not ref.is_running())
    os.close(echo.input)


@linux
def test_a_forked_process_has_one_name_and_none_of_its_siblings_files(tiny_services: Path, tmp_path: Path) -> None:
    with ForkSpawner(service_environment(os.environ)) as spawner:
        first = Started(spawner, tmp_path, "tiny_services:Echo")
        second = Started(spawner, tmp_path, "tiny_services:Echo")
        second.call("shout", {"text": "hi"})
        links = [os.readlink(path) for path in Path(f"/proc/{second.child.pid}/fd").iterdir()]
        name = Path(f"/proc/{second.child.pid}/comm").read_text().strip()
        for started in (first, second):
            os.kill(started.child.pid, signal.SIGTERM)
            started.ended()

    assert name == "echo"
    assert not any("pidfd" in link for link in links)


@linux
def test_without_its_fork_server_processes_are_started_the_other_way(
    tiny_services: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawning, "_PYTHON", (sys.executable, "-c", "raise SystemExit", "-P", "-m"))
    with ForkSpawner(service_environment(os.environ)) as spawner:
        spawner._server.wait()
        monkeypatch.undo()
        monkeypatch.setenv("PYTHONPATH", str(tiny_services))
        echo = Started(spawner, tmp_path, "tiny_services:Quitter")

        assert isinstance(echo.child, subprocess.Popen)
        assert echo.ended() != 0


@linux
def test_when_the_fork_server_dies_its_processes_are_still_watched(tiny_services: Path, tmp_path: Path) -> None:
    with ForkSpawner(service_environment(os.environ)) as spawner:
        echo = Started(spawner, tmp_path, "tiny_services:Echo")
        echo.call("shout", {"text": "hi"})
        spawner._server.kill()
        spawner._server.wait()

        assert echo.child.poll() is None
        os.kill(echo.child.pid, signal.SIGKILL)
        assert echo.ended() == -1


def test_services_see_what_python_needs_and_what_is_passed_on_by_name() -> None:
    environ = {"PATH": "/bin", "LC_ALL": "C", "SSL_CERT_FILE": "x", "OPENAI_API_KEY": "k", "ROLLMILL_TOKEN": "t"}

    assert service_environment(environ) == {"PATH": "/bin", "LC_ALL": "C", "SSL_CERT_FILE": "x"}
    assert service_environment(environ, ["OPENAI_API_KEY", "UNSET"])["OPENAI_API_KEY"] == "k"


def test_services_see_where_traces_go_but_no_headers_which_hold_keys() -> None:
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=k", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "api-key=k"}
    where = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"}

    assert service_environment(where | headers) == where
    allowed = service_environment(where | headers, ["OTEL_EXPORTER_OTLP_HEADERS"])
    assert allowed.keys() == {*where, "OTEL_EXPORTER_OTLP_HEADERS"}


def test_only_linux_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    with new_spawner({}) as spawner:
        assert isinstance(spawner, ExecSpawner)


def test_a_socket_pair_keeps_the_borders_of_messages() -> None:
    """What the fork server builds on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b"one")
        ours.send(b"two")
        assert [theirs.recv(100), theirs.recv(100)] == [b"one", b"two"]
