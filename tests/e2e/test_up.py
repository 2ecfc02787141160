"""Services as local processes, from `rollmill up` to `rollmill down`, with nothing replaced."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import httpx
import psutil
import pytest

from rollmill.contracts.json import JsonObject
from rollmill.local.state import Deployment, ProcessRecord, StateDir

pytestmark = pytest.mark.e2e

ANY_PORT = ("--head-port", "0", "--collector-port", "0", "--profiler-port", "0")
TOPOLOGY = """
services:
  policy: {kind: model, use: "tiny:Policy"}
  echo: {kind: resources, use: "tiny:Echo", replicas: 2, settings: {password: "${ECHO_PASSWORD}"}}
  agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: echo}}
"""
MODULE = """
    import os
    from pydantic import SecretStr
    from rollmill.config.settings import ServiceSettings
    from rollmill.openai import new_response, text_message
    from rollmill.server import Model, Resources, tool

    class EchoSettings(ServiceSettings):
        password: SecretStr

    class Echo(Resources):
        Settings = EchoSettings

        @tool
        async def shout(self, text: str) -> str:
            return text.upper()

        @tool
        async def knows(self, password: str) -> str:
            return str(password == self.settings.password.get_secret_value())

        @tool
        async def variables(self) -> list[str]:
            return sorted(os.environ)

        async def verify(self, rollout, session):
            return 1.0

    class Policy(Model):
        async def respond(self, request):
            return new_response([text_message("hello")], request=request, model="tiny")
"""


class Folder:
    """A working folder with a topology in it, and what `rollmill` does there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = StateDir(path / ".rollmill")
        (path / "topology.yaml").write_text(TOPOLOGY)
        (path / "tiny.py").write_text(dedent(MODULE))
        hidden = ("ROLLMILL_HOME", "ROLLMILL_TOKEN", "ROLLMILL_TOKEN_FILE", "ROLLMILL_HEAD_URL")
        self.environ = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environ |= {"ECHO_PASSWORD": "hunter2", "FOREIGN_KEY": "sk-foreign"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "rollmill", *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*arguments), cwd=self.path, env=self.environ, capture_output=True, text=True, timeout=90
        )

    def up(self, *options: str) -> "subprocess.CompletedProcess[str]":
        return self.run("up", "-c", "topology.yaml", *ANY_PORT, *options)

    def deployment(self) -> Deployment:
        found = self.state.load()
        assert found is not None
        return found

    def processes(self) -> dict[str, ProcessRecord]:
        return {process.label: process for process in self.deployment().processes}

    def services(self) -> list[JsonObject]:
        found: list[JsonObject] = json.loads(self.run("status", "--json").stdout)["services"]
        return found

    def call(self, label: str, tool: str, body: JsonObject, *, token: str | None = None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token or self.state.token()}"}
        return httpx.post(f"{self.processes()[label].url}/{tool}", json=body, headers=headers, timeout=30)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path)
    yield folder
    folder.run("down", "--grace", "5")


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not condition():
        pause.wait(0.1)


def test_a_detached_deployment_serves_until_it_is_taken_down_and_leaves_nothing_behind(folder: Folder) -> None:
    started = folder.up("--detach")
    assert started.returncode == 0, started.stderr
    assert started.stdout == ""
    assert "rollmill collect" in started.stderr
    assert "curl" in started.stderr
    records = folder.processes()
    assert set(records) == {"head", "collector", "profiler", "policy", "echo@1", "echo@2", "agent"}

    services = folder.services()
    assert sorted(s["name"] for s in services) == ["agent", "collector", "echo", "echo", "policy", "profiler"]
    assert {s["url"] for s in services} == {r.url for label, r in records.items() if label != "head"}
    assert all(s["state"] == "ready" for s in services)
    assert "echo" in folder.run("status").stdout

    down = folder.run("down")
    assert down.returncode == 0, down.stderr
    assert not any(record.ref.is_running() for record in records.values())
    assert living_in(folder.path) == []
    assert folder.run("status").returncode == 1
    assert sorted(path.name for path in folder.state.path.iterdir()) == [
        ".gitignore",
        "lock",
        "logs",
        "settings",
        "token",
    ]
    assert list((folder.state.path / "settings").iterdir()) == []


def test_calls_need_the_token_and_every_service_is_told_only_its_own(folder: Folder) -> None:
    assert folder.up("--detach").returncode == 0
    token = folder.run("token").stdout.strip()

    assert folder.call("echo@1", "shout", {"text": "hi"}, token=token).text == "HI"
    assert folder.call("echo@2", "knows", {"password": "hunter2"}, token=token).text == "True"
    for label in folder.processes():
        assert folder.call(label, "version", {}, token="wrong").status_code == 401
    variables = folder.call("echo@1", "variables", {}).json()

    assert not {"ECHO_PASSWORD", "FOREIGN_KEY", "ROLLMILL_TOKEN"} & set(variables)
    seen = {label: process_view(record.pid) for label, record in folder.processes().items()}
    for secret in (token, "hunter2", "sk-foreign"):
        assert [label for label, view in seen.items() if secret in view] == []


def process_view(pid: int) -> str:
    """What every user of the machine, or whoever reads its environment, can see of a process."""
    process = psutil.Process(pid)
    return f"{process.cmdline()} {process.environ()}"


def test_files_with_secrets_are_readable_by_their_owner_only(folder: Folder) -> None:
    assert folder.up("--detach").returncode == 0

    state = folder.state.path
    private = [state / "token", state / "services.json", *(state / "settings").iterdir(), *(state / "logs").iterdir()]
    assert len(private) == 2 + 7 + 7
    assert [path for path in private if path.stat().st_mode & 0o077] == []
    assert state.stat().st_mode & 0o077 == 0
    with_password = [path.name for path in (state / "settings").iterdir() if "hunter2" in path.read_text()]
    assert sorted(with_password) == ["echo@1.json", "echo@2.json"]
    everything = "".join(path.read_text() for path in (state / "logs").iterdir())
    assert "hunter2" not in everything
    assert folder.state.token() not in everything


def test_a_killed_replica_of_a_detached_deployment_is_shown_and_its_lease_runs_out(folder: Folder) -> None:
    assert folder.up("--detach").returncode == 0
    gone = folder.processes()["echo@1"]
    os.kill(gone.pid, signal.SIGKILL)

    wait_until(lambda: len(folder.services()) == 5)

    assert gone.url not in {s["url"] for s in folder.services()}
    assert "echo@1 does not run any more" in folder.run("status").stderr
    assert folder.call("echo@2", "shout", {"text": "hi"}).text == "HI"


def test_a_second_up_is_refused_and_the_first_goes_on(folder: Folder) -> None:
    assert folder.up("--detach").returncode == 0

    second = folder.up("--detach")

    assert second.returncode == 1
    assert "rollmill down" in second.stderr
    assert folder.call("echo@1", "shout", {"text": "hi"}).text == "HI"


def test_a_port_in_use_ends_up_before_anything_starts(folder: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = folder.up("--detach", "--collector-port", str(port))

    assert result.returncode == 1
    assert f"port {port} of 127.0.0.1 is in use" in result.stderr
    assert "--collector-port" in result.stderr
    assert folder.state.load() is None


def test_a_service_that_cannot_start_ends_up_with_its_log_and_takes_the_others_along(folder: Folder) -> None:
    (folder.path / "tiny.py").write_text(
        dedent(MODULE) + "\n    async def startup(self): raise RuntimeError('no disk')\n"
    )

    result = folder.up("--detach")

    assert result.returncode == 1
    assert "policy ended with exit code 3 during start" in result.stderr
    assert "RuntimeError: no disk" in result.stderr
    assert folder.state.load() is None
    assert living_in(folder.path) == []


def living_in(path: Path) -> list[int]:
    """Processes, other than this one, that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(path):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def foreground(folder: Folder) -> Iterator["subprocess.Popen[str]"]:
    command = folder.command("up", "-c", "topology.yaml", *ANY_PORT)
    with (
        (folder.path / "up.err").open("w") as errors,
        subprocess.Popen(command, cwd=folder.path, env=folder.environ, stderr=errors, text=True) as process,
    ):
        wait_until(lambda: process.poll() is not None or "ready in" in said(folder))
        assert process.poll() is None, said(folder)
        yield process
        process.kill()


def said(folder: Folder) -> str:
    return (folder.path / "up.err").read_text()


def test_in_the_foreground_a_killed_replica_comes_back(folder: Folder, foreground: "subprocess.Popen[str]") -> None:
    before = folder.processes()["echo@1"]
    os.kill(before.pid, signal.SIGKILL)

    wait_until(lambda: folder.processes()["echo@1"].pid != before.pid)
    wait_until(lambda: folder.call("echo@1", "shout", {"text": "hi"}).text == "HI")

    assert folder.processes()["echo@1"].url == before.url
    assert "echo@1 was killed by signal 9; starting it again" in said(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_foreground_and_everything_with_it(
    folder: Folder, foreground: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    records = folder.processes()
    foreground.send_signal(number)

    assert foreground.wait(timeout=60) == 0
    assert said(folder).endswith("stopped\n")
    assert not any(record.ref.is_running() for record in records.values())
    assert folder.state.load() is None


def test_down_also_ends_a_deployment_in_the_foreground(folder: Folder, foreground: "subprocess.Popen[str]") -> None:
    down = folder.run("down")

    assert down.returncode == 0, down.stderr
    assert foreground.wait(timeout=60) == 0
    assert living_in(folder.path) == []


def test_services_do_not_outlive_a_foreground_that_is_killed(
    folder: Folder, foreground: "subprocess.Popen[str]"
) -> None:
    foreground.kill()
    foreground.wait()

    wait_until(lambda: living_in(folder.path) == [])

    assert folder.run("down").returncode == 0
