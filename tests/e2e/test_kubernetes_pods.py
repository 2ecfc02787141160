"""The pods of the local overlay and the Jobs, as processes of this machine: their commands, variables and files."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.kubernetes import container, named, own, topology, variables

from rollmill.artifacts.manifest import read_manifest
from rollmill.artifacts.reader import read_jsonl
from rollmill.contracts.json import dumps
from rollmill.contracts.rows import row_key

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="NOT TESTED: kubectl is not installed"),
]

TASKS = Path(__file__).parents[2] / "examples" / "data" / "weather.jsonl"
SERVICES = ("head", "policy", "weather", "weather-agent")
START_SECONDS = 60
JOB_SECONDS = 60


class Cluster:
    """Some pods; what is a path, an address or a port of its own in a cluster is one of this machine here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {name: free_port() for name in SERVICES}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.data = folder / "data"
        for name in ("data", "token", "topology"):
            (folder / name).mkdir()
        for name, settings in topology("overlays/local").items():
            (folder / "topology" / f"{name}.json").write_bytes(dumps(settings))
        shutil.copy(TASKS, self.data / "tasks.jsonl")
        self.run(["token", "--init", "--file", str(folder / "token" / "token")], {})

    @property
    def head_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['head']}"

    def start(self, name: str) -> None:
        args, environment = self._told("overlays/local", name, SERVICE=name, POD_IP="127.0.0.1")
        environment["ROLLMILL_HOST"] = "127.0.0.1"
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command(args), env=environment, stdout=log, stderr=log)

    def job(self, name: str, index: int = 0) -> "subprocess.CompletedProcess[str]":
        args, environment = self._told("jobs", name, JOB_COMPLETION_INDEX=str(index))
        return self.run(args, environment)

    def run(self, args: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command(args), env=environment, capture_output=True, text=True, timeout=JOB_SECONDS, check=False
        )

    def _told(self, target: str, name: str, **known: str) -> tuple[list[str], dict[str, str]]:
        """Resolve the arguments and variables of a pod as its node would; `known` are those that the node fills in."""
        pod = own(target)[name]
        environment: dict[str, str] = {}
        for variable, value in variables(pod).items():
            environment[variable] = known.get(variable) or resolved(self._here(value), environment)
        arguments = [resolved(self._here(arg), environment) for arg in container(pod)["args"]]
        home = {"PATH": os.environ["PATH"], "ROLLMILL_HOME": str(self.folder / "home")}
        return arguments, {**home, **environment}

    def _here(self, text: str) -> str:
        for name, port in self.ports.items():
            text = text.replace(str(container(own("overlays/local")[name])["ports"][0]["containerPort"]), str(port))
        moved = {"/etc/rollmill": "topology", "/run/rollmill": "token", "/data": "data"}
        for path, folder in moved.items():
            text = re.sub(rf"(?<![\w.]){path}(?=/)", str(self.folder / folder), text)
        return text.replace("http://head:", "http://127.0.0.1:")

    def wait(self) -> None:
        """Return when all services are registered."""
        token = {"Authorization": f"Bearer {(self.folder / 'token' / 'token').read_text().strip()}"}
        ends = time.monotonic() + START_SECONDS
        with httpx.Client(base_url=self.head_url, headers=token, timeout=5, verify=False) as client:
            while registered(client) != {"policy", "weather", "weather_agent"}:
                assert time.monotonic() < ends, self.logs()
                assert all(process.poll() is None for process in self.processes.values()), self.logs()
                time.sleep(0.1)  # noqa: TID251 (what a test waits for has no event of its own)

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def stop(self) -> list[int]:
        """Ask every service to leave, callers first, and return their exit statuses."""
        for process in self.processes.values():
            process.terminate()
        return [process.wait(timeout=START_SECONDS) for process in self.processes.values()]


def registered(head: httpx.Client) -> set[str]:
    try:
        services = head.get("/v1/services").json()["services"]
    except httpx.TransportError:
        return set()
    return {one["name"] for one in services}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def command(args: list[str]) -> list[str]:
    return [sys.executable, "-m", "rollmill", *args]


def resolved(text: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\(([A-Z_]+)\)", lambda found: environment[found[1]], text)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    try:
        for name in SERVICES:
            found.start(name)
        found.wait()
        yield found
    finally:
        for process in found.processes.values():
            process.kill()
            process.wait()


def test_a_sharded_collection_becomes_one_run_and_the_pods_leave_in_peace(cluster: Cluster) -> None:
    count = named("jobs", "Job")["collect"]["completions"]
    for index in range(count):
        done = cluster.job("collect", index)
        assert done.returncode == 0, done.stderr
    done = cluster.job("aggregate")
    assert (done.returncode, "warning" in done.stderr) == (0, False), done.stderr

    rows = list(read_jsonl(cluster.data / "sharded" / "rollouts.jsonl"))
    tasks = len(TASKS.read_bytes().splitlines())
    assert sorted(map(row_key, rows)) == [(task, rollout) for task in range(tasks) for rollout in range(4)]
    manifest = read_manifest(cluster.data / "sharded" / "rollouts_manifest.json")
    assert manifest is not None
    assert (manifest.state, manifest.digests.shard) == ("finished", None)

    again = cluster.job("collect", 0)
    assert again.returncode == 0, again.stderr
    assert len(list(read_jsonl(cluster.data / "sharded" / f"rollouts-00000-of-{count:05d}.jsonl"))) == 12
    assert cluster.stop() == [0] * len(SERVICES), cluster.logs()
