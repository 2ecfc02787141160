"""docker-compose.yml with a real engine: one deployment for the whole module, everything asked from outside.

It needs a local engine and root, which `kill -9` from outside takes, and runs with `make containers`.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from rollmill import CollectorClient, RunRequest, RunStatus
from rollmill.contracts.json import JsonObject
from rollmill.errors import RollmillError, UnauthorizedError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 240.0
# A model that takes its time, so that there is a run to disturb.
OVERRIDE = """
services:
  policy: {environment: {ROLLMILL_DELAY_SECONDS: 0.5}}
"""
TASKS = [json.loads(line) for line in (ROOT / "examples/data/weather.jsonl").read_text().splitlines()]
Finished = subprocess.CompletedProcess[str]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], bool], *, what: str, seconds: float = PATIENCE_SECONDS) -> None:
    pause = threading.Event()
    for _ in range(int(seconds / 0.5)):
        if condition():
            return
        pause.wait(0.5)
    raise AssertionError(f"not within {seconds:g} s: {what}")


class Project:
    """`docker compose` on the repository's own file, with a name, an image, ports and volumes of its own."""

    def __init__(self, folder: Path) -> None:
        override = folder / "override.yml"
        override.write_text(OVERRIDE)
        self.name = f"rollmill-test-{uuid.uuid4().hex[:8]}"
        self.ports = {name: free_port() for name in ("head", "collector", "profiler")}
        self.token = ""
        self._environ = {
            **os.environ,
            "COMPOSE_PROJECT_NAME": self.name,
            "COMPOSE_FILE": os.pathsep.join([str(ROOT / "docker-compose.yml"), str(override)]),
            "ROLLMILL_IMAGE": "rollmill-test",
            **{f"ROLLMILL_{name.upper()}_PORT": str(port) for name, port in self.ports.items()},
        }

    def run(self, *command: str, check: bool = True, environ: Mapping[str, str] | None = None) -> Finished:
        full = {**self._environ, **(environ or {})}
        done = subprocess.run(command, cwd=ROOT, env=full, capture_output=True, text=True, timeout=800)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def compose(self, *arguments: str, check: bool = True, environ: Mapping[str, str] | None = None) -> Finished:
        return self.run("docker", "compose", *arguments, check=check, environ=environ)

    def containers(self, *services: str) -> list[str]:
        return self.compose("ps", "--all", "--quiet", *services).stdout.split()

    def inspect(self, container: str) -> JsonObject:
        [found] = json.loads(self.run("docker", "inspect", container).stdout)
        return dict(found)

    def scale(self, service: str, replicas: int) -> None:
        self.compose("up", "--detach", "--no-deps", "--no-recreate", "--scale", f"{service}={replicas}", service)

    def kill_nine(self, service: str) -> str:
        """Kill the first process of a service's container as the kernel would; returns the container."""
        [container] = self.containers(service)
        os.kill(self.inspect(container)["State"]["Pid"], signal.SIGKILL)
        return container

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def collector(self, *, token: str | None = None, url: str = "") -> CollectorClient:
        shown = self.token if token is None else token
        return CollectorClient(url or self.url("collector"), token=shown, timeout_seconds=60)

    def registered(self, name: str) -> list[JsonObject]:
        """Return what the head knows of one service; nothing while it does not answer."""
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            reply = httpx.get(f"{self.url('head')}/v1/services/{name}", headers=headers, timeout=30)
        except httpx.TransportError:
            return []
        return list(reply.json()["services"]) if reply.is_success else []

    def start(self, run_id: str, *, repeats: int, concurrency: int) -> None:
        request = RunRequest(id=run_id, rows=TASKS, num_repeats=repeats, concurrency=concurrency, max_attempts=50)
        with self.collector() as client:
            client.start(request)

    def status(self, run_id: str) -> RunStatus | None:
        """Return a run's numbers; None while the collector does not answer."""
        try:
            with self.collector() as client:
                return client.status(run_id)
        except RollmillError:
            return None

    def wait_for(self, run_id: str, *, completed: int) -> None:
        def enough() -> bool:
            status = self.status(run_id)
            return status is not None and status.completed >= completed

        wait_until(enough, what=f"{completed} rollouts of {run_id}")

    def assert_finished(self, run_id: str, *, expected: int) -> None:
        """Every rollout is there once, and none was given up on."""
        self.wait_for(run_id, completed=expected)
        wait_until(lambda: getattr(self.status(run_id), "state", "") == "finished", what=f"the end of {run_id}")
        with self.collector() as client:
            status = client.status(run_id)
            keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in client.rollouts(run_id)]
        assert (status.expected, status.completed, status.failed) == (expected, expected, 0)
        assert len(keys) == len(set(keys)) == expected


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("one deployment at a time: `make containers` runs these tests")
    if not shutil.which("docker") or subprocess.run(["docker", "version"], capture_output=True).returncode:
        pytest.skip("NO CONTAINER WAS TESTED: no Docker engine answers; start one, or set DOCKER_HOST")
    project = Project(tmp_path_factory.mktemp("compose"))
    try:
        project.run("deploy/up.sh", "--build", environ={"UP_SECONDS": "700"})
        project.token = project.compose("exec", "-T", "head", "rollmill", "token").stdout.strip()
        yield project
    finally:
        project.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", check=False)
    left = project.run("docker", "volume", "ls", "--quiet", "--filter", f"name={project.name}").stdout
    assert (project.containers(), left) == ([], "")


def test_a_collection_and_its_profile_are_had_over_http_from_outside(project: Project) -> None:
    headers = {"Authorization": f"Bearer {project.token}"}
    files = {"file": (ROOT / "examples/data/weather.jsonl").read_bytes()}
    request = {"request": json.dumps({"id": "outside", "num_repeats": 2})}
    reply = httpx.post(f"{project.url('collector')}/collect", headers=headers, files=files, data=request, timeout=120)
    lines = [json.loads(line) for line in reply.text.splitlines()]

    assert (len(lines), lines[-1]["_rollmill_event"], lines[-1]["state"]) == (21, "end", "finished")

    url = f"{project.url('profiler')}/v1/runs/outside/profile?level=summary"
    profile = httpx.get(url, headers=headers, timeout=60).json()
    assert profile["completion"]["completed_rollouts"] == 20
    assert profile["summaries"]["weather_agent"]["estimates"]["mean_reward"]["value"] == 1.0


@pytest.mark.parametrize("data", ["counter", "math"])
def test_every_environment_of_the_file_works(project: Project, data: str) -> None:
    rows = [json.loads(line) for line in (ROOT / f"examples/data/{data}.jsonl").read_text().splitlines()][:6]
    with project.collector() as client:
        client.start(RunRequest(id=data, rows=rows))
    wait_until(lambda: getattr(project.status(data), "state", "") == "finished", what=data)

    status = project.status(data)
    assert status is not None
    assert (status.completed, status.failed) == (6, 0)
    assert status.mean_reward


def test_a_wrong_token_is_refused_and_none_gets_only_health(project: Project) -> None:
    with project.collector(token="wrong") as client, pytest.raises(UnauthorizedError):
        client.runs()

    for service in project.ports:
        assert httpx.get(f"{project.url(service)}/readyz").status_code == 204
        assert httpx.get(f"{project.url(service)}/version").status_code == 401


def test_containers_have_no_more_rights_than_they_need(project: Project) -> None:
    for container in project.containers():
        found = project.inspect(container)
        host = found["HostConfig"]
        bound = [address["HostIp"] for each in host["PortBindings"].values() for address in each]

        assert found["Config"]["User"] == "10001:10001"
        assert (host["ReadonlyRootfs"], host["CapDrop"], host["CapAdd"]) == (True, ["ALL"], None)
        assert "no-new-privileges:true" in host["SecurityOpt"]
        assert set(bound) <= {"127.0.0.1"}
        assert project.token not in json.dumps(found)
    mode = project.compose("exec", "-T", "head", "stat", "-c", "%a", "/run/rollmill/token").stdout
    assert mode.strip() == "600"


def test_replicas_share_the_load_and_rescaling_loses_nothing(project: Project) -> None:
    project.start("scaled", repeats=60, concurrency=12)
    project.scale("weather_agent", 4)
    wait_until(lambda: len(project.registered("weather_agent")) == 4, what="four replicas at the head")
    seen: set[str] = set()

    def all_at_work() -> bool:
        seen.update(agent["url"] for agent in project.registered("weather_agent") if agent["in_flight"])
        return len(seen) == 4

    wait_until(all_at_work, what="work for each of four replicas")
    middle = project.status("scaled")
    project.scale("weather_agent", 1)

    assert middle is not None
    assert middle.state == "running"
    project.assert_finished("scaled", expected=600)
    assert len(project.registered("weather_agent")) == 1


def test_a_killed_agent_and_a_killed_collector_come_back_and_the_run_completes(project: Project) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: only root may kill a container's process from outside")
    project.start("killed", repeats=30, concurrency=8)
    project.wait_for("killed", completed=20)
    agent = project.kill_nine("weather_agent")
    project.wait_for("killed", completed=60)
    collector = project.kill_nine("collector")

    project.assert_finished("killed", expected=300)
    assert [project.inspect(container)["RestartCount"] for container in (agent, collector)] == [1, 1]


def test_a_run_goes_on_while_the_head_is_cut_off_and_finds_it_again(project: Project) -> None:
    [head], network = project.containers("head"), f"{project.name}_default"
    project.start("parted", repeats=40, concurrency=6)
    project.wait_for("parted", completed=10)
    project.run("docker", "network", "disconnect", network, head)
    project.compose("exec", "-T", "collector", "sleep", "15")  # longer than a lease
    parted = project.status("parted")
    project.run("docker", "network", "connect", "--alias", "head", network, head)

    assert parted is not None
    assert parted.state == "running"
    assert parted.completed > 10
    wait_until(lambda: bool(project.registered("weather_agent")), what="the agent at the head again")
    project.assert_finished("parted", expected=400)


def test_stopping_drains_and_starting_goes_on(project: Project) -> None:
    project.start("stopped", repeats=20, concurrency=6)
    project.wait_for("stopped", completed=10)
    services = ["collector", "weather_agent", "weather"]
    project.compose("stop", *services)

    for service in services:
        [container] = project.containers(service)
        logs = project.run("docker", "logs", container).stderr
        assert project.inspect(container)["State"]["ExitCode"] == 0, service
        assert logs.index('"draining"') < logs.rindex('"stopped"')
    project.run("deploy/up.sh", "--no-recreate")
    project.assert_finished("stopped", expected=200)


def test_the_image_alone_is_small_becomes_healthy_and_stops_in_order(project: Project) -> None:
    image = f"{project.name}-plain"
    project.run("docker", "build", "--quiet", "--file", "deploy/Dockerfile", "--tag", image, ".")
    sizes = project.run(
        "docker", "image", "inspect", "--format", "{{.Size}}", image, "python:3.11-slim-bookworm"
    ).stdout
    options = ("--detach", "--read-only", "--cap-drop", "ALL", "--env", "ROLLMILL_TOKEN=token-of-one-container")
    container = project.run("docker", "run", *options, image, "serve", "weather").stdout.strip()
    try:
        wait_until(lambda: project.inspect(container)["State"]["Health"]["Status"] == "healthy", what="health")
        project.run("docker", "stop", "--time", "60", container)
        ending = project.inspect(container)["State"]["ExitCode"]
        logs = project.run("docker", "logs", container).stderr
    finally:
        project.run("docker", "rm", "--force", container)
        project.run("docker", "image", "rm", image)

    own, base = map(int, sizes.split())
    assert (own - base) / 1e6 < 250
    assert ending == 0
    assert logs.index('"draining"') < logs.index('"stopped"')


def test_a_token_that_others_can_read_stops_the_head_with_the_fix(project: Project) -> None:
    run = ("run", "--rm", "--no-deps", "-T", "head")
    project.compose("exec", "-T", "head", "chmod", "644", "/run/rollmill/token")
    try:
        refused = project.compose(*run, check=False)
    finally:
        project.compose("exec", "-T", "head", "chmod", "600", "/run/rollmill/token")

    assert refused.returncode == 1
    assert "/run/rollmill/token can be read by others; run: chmod 600 /run/rollmill/token" in refused.stderr


def test_a_service_that_cannot_be_scaled_is_named(project: Project) -> None:
    refused = project.compose("up", "--detach", "--scale", "wether_agent=4", check=False)

    assert refused.returncode != 0
    assert "wether_agent" in refused.stderr


def test_a_port_that_is_taken_is_named(project: Project) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        second = {"COMPOSE_PROJECT_NAME": f"{project.name}-second", "ROLLMILL_HEAD_PORT": port}
        try:
            refused = project.compose("up", "--detach", "head", check=False, environ=second)
        finally:
            project.compose("down", "--volumes", environ=second)

    assert refused.returncode != 0
    assert port in refused.stderr
    assert "address already in use" in refused.stderr


def test_a_service_that_never_becomes_ready_is_named_with_its_last_words(project: Project) -> None:
    third = {"COMPOSE_PROJECT_NAME": f"{project.name}-third", "POLICY_BASE_URL": "not-a-url", "UP_SECONDS": "90"}
    third |= {f"ROLLMILL_{name.upper()}_PORT": str(free_port()) for name in project.ports}
    try:
        failed = project.run("deploy/up.sh", "policy", check=False, environ=third)
    finally:
        project.compose("down", "--volumes", "--timeout", "5", environ=third)

    assert failed.returncode != 0
    assert f"not ready: {project.name}-third-policy-1" in failed.stderr
    assert "base_url" in failed.stderr
    assert "must be an http(s) URL without credentials" in failed.stderr
    assert "not ready: " + f"{project.name}-third-head" not in failed.stderr


@pytest.fixture
def full_volume(project: Project) -> Iterator[str]:
    name = f"{project.name}-full"
    options = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=size=64k,uid=10001,mode=700")
    project.run("docker", "volume", "create", *options, name)
    yield name
    project.run("docker", "volume", "rm", name)


def collecting_into(project: Project, volume: str) -> "tuple[str, CollectorClient]":
    """Start another collector whose runs go to a volume; returns its container and a client."""
    port = free_port()
    publish = ("--publish", f"127.0.0.1:{port}:11001", "--volume", f"{volume}")
    container = project.compose("run", "--detach", "--no-deps", *publish, "collector").stdout.split()[-1]
    client = project.collector(url=f"http://127.0.0.1:{port}")

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 204
        except httpx.TransportError:
            return False

    wait_until(ready, what="the other collector")
    return container, client


def test_a_full_volume_fails_the_run_with_its_reason(project: Project, full_volume: str) -> None:
    container, client = collecting_into(project, f"{full_volume}:/data")
    try:
        with client:
            client.start(RunRequest(id="full", rows=TASKS, num_repeats=20))
            wait_until(lambda: client.status("full").state != "running", what="the end of a run without room")
            status = client.status("full")
    finally:
        project.run("docker", "rm", "--force", container)

    assert status.state == "failed"
    assert "No space left on device" in status.error


def test_a_volume_that_is_read_only_refuses_the_run_with_its_reason(project: Project) -> None:
    container, client = collecting_into(project, f"{project.name}_runs:/data:ro")
    try:
        with client, pytest.raises(RollmillError, match="Read-only file system"):
            client.start(RunRequest(id="read-only", rows=TASKS))
    finally:
        project.run("docker", "rm", "--force", container)
