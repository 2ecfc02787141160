"""Services in processes of the plan's own, for what `rollmill up` has no option for: a short lease, proxies, a clock."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from tests.chaos.plans import HERE, TASKS, Site

from rollmill.contracts.json import JsonObject
from rollmill.testing import FaultyProxy

TOKEN = "chaos-token"


class OwnProcess:
    """One service on a port that stays its own, so that it can be started again."""

    def __init__(self, site: Site, name: str, use: str, label: str) -> None:
        self.name = name
        self.pid = 0
        self._site = site
        self._use = use
        self._label = label
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def _settings(self) -> Path:
        return self._site.folder / f"{self._label}.json"

    def start(self, settings: JsonObject | None = None) -> None:
        """Start it; with the settings of the last time when none are given."""
        if settings is not None:
            self._settings.write_text(json.dumps({"name": self.name, "token": TOKEN, **settings}))
        number = self._listener.fileno()
        with (self._site.folder / f"{self._label}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollmill.local.serve_process", self._use, "--fd", str(number), "--with-parent"],
                env={**self._site.environ(), "ROLLMILL_SETTINGS_FILE": str(self._settings)},
                cwd=HERE,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[number],
            )
        self.pid = self._process.pid

    def kill(self) -> None:
        """Kill -9 it. Its port goes on taking connections, which wait for whoever is started next."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def close(self) -> None:
        self.kill()
        self._listener.close()


class OwnServices:
    """The head, a collector and replicas of model, resources and agent."""

    def __init__(self, processes: list[OwnProcess]) -> None:
        self.processes = processes

    def named(self, name: str) -> list[OwnProcess]:
        return [process for process in self.processes if process.name == name]

    @property
    def head(self) -> OwnProcess:
        return self.named("head")[0]

    def registered(self) -> set[str]:
        """The URLs of what the head knows."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        services = httpx.get(f"{self.head.url}/v1/services", headers=headers, timeout=30.0).json()["services"]
        return {service["url"] for service in services}


@contextmanager
def own_services(
    site: Site, *, lease_seconds: float, through: Mapping[str, FaultyProxy] | None = None
) -> Iterator[OwnServices]:
    """Serve until the block ends, and have the site's collecting command use these services.

    Args:
        site: tells delay and replicas.
        lease_seconds: of the head.
        through: open proxies by name of the service that is reached through them. It has one replica then.
    """
    proxies = through or {}
    topology: dict[str, tuple[str, int, JsonObject]] = {
        "policy": ("scripted", site.replicas, {"answers": [str(TASKS)], "skill": 0.6, "delay_seconds": site.delay}),
        "mcqa": ("counted:Counted", site.replicas, {"executions": str(site.executions)}),
        "mcqa_agent": ("single_turn", site.replicas, {"model": "policy", "resources": "mcqa"}),
        "collector": ("collector", 1, {"data_dir": str(site.folder / "results")}),
    }
    processes: list[OwnProcess] = []
    with ExitStack() as stack:

        def placed(name: str, use: str, number: int = 0) -> OwnProcess:
            process = OwnProcess(site, name, use, f"{name}-{number}")
            stack.callback(process.close)
            if name in proxies:
                proxies[name].upstream_url = process.url
            processes.append(process)
            return process

        head = placed("head", "head")
        head.start({"lease_seconds": lease_seconds})
        head_url = proxies["head"].url if "head" in proxies else head.url
        for name, (use, replicas, settings) in topology.items():
            for number in range(replicas):
                process = placed(name, use, number)
                url = proxies[name].url if name in proxies else process.url
                process.start({**settings, "head_url": head_url, "advertise_url": url})
        site.head = head_url
        site.env["ROLLMILL_TOKEN"] = TOKEN
        yield OwnServices(processes)
