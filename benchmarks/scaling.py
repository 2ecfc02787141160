"""What do more containers of an agent bring when the agent is what takes the time?

Run:  python benchmarks/scaling.py [--replicas 1 2 4] [--rollouts 60] [--work-ms 20] [--cpus 0.2]

It starts docker-compose.yml with an agent that computes for a while in every rollout, and collects the same tasks with
more and more of its replicas. Each may use a fifth of a core, so that four of them and what they call fit on two cores:
the factor then says what replicas bring, and not how many cores there are.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

from report import machine, table
from rollmill import CollectorClient, RunRequest
from rollmill.contracts.json import JsonObject
from rollmill.server.agent import Agent, AgentSettings, Episode

ROOT = Path(__file__).parents[1]
WORK_VARIABLE = "WORK_SECONDS"
OVERRIDE = """
services:
  weather_agent:
    command: [serve, "scaling:Busy"]
    cpus: {cpus}
    environment: {{PYTHONPATH: /benchmarks, {variable}: "{seconds}"}}
    volumes: ["{benchmarks}:/benchmarks:ro"]
"""


class Busy(Agent):
    """Asks the model once, after it has kept its core busy for a while."""

    def __init__(self, settings: AgentSettings) -> None:
        super().__init__(settings)
        self._work_seconds = float(os.environ[WORK_VARIABLE])

    async def respond(self, request: JsonObject, episode: Episode) -> JsonObject:
        until = time.process_time() + self._work_seconds
        while time.process_time() < until:
            pass
        return await episode.respond(request)


def compose(*arguments: str) -> str:
    command = ["docker", "--log-level", "error", "compose", "--progress", "quiet", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def rollouts_per_second(token: str, replicas: int, rollouts: int) -> float:
    """Collect with so many replicas of the agent, after a short run that does not count."""
    compose("up", "--detach", "--wait", "--no-recreate", "--scale", f"weather_agent={replicas}")
    port = os.environ.get("ROLLMILL_COLLECTOR_PORT", "11001")
    with CollectorClient(f"http://127.0.0.1:{port}", token=token) as client:
        collect(client, f"warm-{replicas}", rollouts=10 * replicas, concurrency=8 * replicas)
        seconds = collect(client, f"measured-{replicas}", rollouts=rollouts * replicas, concurrency=8 * replicas)
    return rollouts * replicas / seconds


def collect(client: CollectorClient, run_id: str, *, rollouts: int, concurrency: int) -> float:
    """Return the seconds that a run takes."""
    row = {"responses_create_params": {"input": "Say something."}, "agent_ref": {"name": "weather_agent"}}
    start = time.perf_counter()
    client.start(RunRequest(id=run_id, rows=[row], num_repeats=rollouts, concurrency=concurrency, aggregate=False))
    received = sum(1 for _ in client.rollouts(run_id))
    seconds = time.perf_counter() - start
    if received != rollouts:
        raise SystemExit(f"{run_id}: {received} of {rollouts} rollouts")
    return seconds


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rollouts", type=int, default=60, help="For each replica.")
    parser.add_argument("--work-ms", type=float, default=20.0)
    parser.add_argument("--cpus", type=float, default=0.2, help="Share of a core that each replica may use.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        override = Path(folder) / "override.yml"
        seconds = arguments.work_ms / 1000
        values = {"variable": WORK_VARIABLE, "seconds": seconds, "cpus": arguments.cpus}
        override.write_text(OVERRIDE.format(benchmarks=ROOT / "benchmarks", **values))
        os.environ["COMPOSE_FILE"] = os.pathsep.join([str(ROOT / "docker-compose.yml"), str(override)])
        os.environ["COMPOSE_PROJECT_NAME"] = "rollmill-scaling"
        try:
            compose("up", "--build", "--detach", "--wait")
            token = compose("exec", "-T", "head", "rollmill", "token").strip()
            rates = {n: rollouts_per_second(token, n, arguments.rollouts) for n in arguments.replicas}
        finally:
            compose("down", "--volumes", "--timeout", "5")
    print(json.dumps(machine()))
    first = rates[arguments.replicas[0]]
    lines = [[str(n), f"{rate:.1f}", f"{rate / first:.2f}x"] for n, rate in rates.items()]
    print(table(["agent replicas", "rollouts per second", "factor"], lines))


if __name__ == "__main__":
    main()
