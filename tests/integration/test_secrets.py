"""Secrets planted in a whole deployment of real processes, and then looked for wherever anybody might see them."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import httpx
import psutil
import pytest

from rollmill.artifacts.reader import read_jsonl
from rollmill.contracts.json import dumps

if TYPE_CHECKING:
    from tests.integration.conftest import Workplace

TOKEN = "planted-token-5c1f0a9be2"
SECRETS = {
    "token": TOKEN,
    "session secret": "planted-session-7d20e6",
    "api key": "planted-api-key-91ab44",
    "password": 'planted-"quoted"-password',
    "url": "planted-userinfo-3e8f",
}
TOPOLOGY = """
services:
  policy:
    kind: model
    use: openai_compatible
    settings: {base_url: "${ENGINE}", api_key: "${POLICY_API_KEY}", model: m, max_retries: 0}
  vault: {kind: resources, use: "vault:Vault", settings: {password: "${PASSWORD}", session_secret: "${SESSION}"}}
  agent: {kind: agent, use: tool_loop, settings: {model: policy, resources: vault}}
"""
MODULE = """
    import structlog
    from pydantic import SecretStr
    from rollmill.config.settings import ServiceSettings
    from rollmill.errors import RollmillError
    from rollmill.server import Resources, tool

    class VaultSettings(ServiceSettings):
        password: SecretStr

    class Vault(Resources):
        Settings = VaultSettings

        @tool
        async def open(self) -> str:
            return self.settings.password.get_secret_value()  # what a tool answers is its author's choice

        async def verify(self, rollout, session):
            password = self.settings.password.get_secret_value()
            structlog.get_logger().warning("grading", settings=self.settings, login=f"root:{password}", at=[password])
            if rollout.row["outcome"] == "refuse":
                raise RollmillError(f"cannot log in as root:{password}")
            if rollout.row["outcome"] == "crash":
                raise ValueError(f"root:{password}")
            return 1.0
"""


class Engine(BaseHTTPRequestHandler):
    """Answers, or fails and shows in its error the key that it was asked with."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["content-length"]))
        self.server.keys.add(self.headers["authorization"])  # type: ignore[attr-defined]
        fails = b"engine-fails" in asked
        message = {"role": "assistant", "content": "done"}
        answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
        answer["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
        body = dumps({"error": {"message": f"bad key {self.headers['authorization']}"}} if fails else answer)
        self.send_response(400 if fails else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.keys = set()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def planted(workplace: "Workplace", engine: ThreadingHTTPServer) -> "Workplace":
    """A folder with a topology, tasks of every outcome, and an environment full of secrets."""
    outcomes = ("fine", "refuse", "crash", "engine-fails")
    tasks = [
        {"outcome": o, "responses_create_params": {"input": f"do {o}"}, "agent_ref": {"name": "agent"}}
        for o in outcomes
    ]
    (workplace.path / "tasks.jsonl").write_bytes(b"".join(dumps(task) + b"\n" for task in tasks))
    (workplace.path / "t.yaml").write_text(TOPOLOGY)
    (workplace.path / "vault.py").write_text(dedent(MODULE))
    token_file = workplace.path / "token"
    token_file.write_text(TOKEN + "\n")
    token_file.chmod(0o600)
    workplace.environ |= {
        "ENGINE": f"http://127.0.0.1:{engine.server_port}/v1",
        "POLICY_API_KEY": SECRETS["api key"],
        "PASSWORD": SECRETS["password"],
        "SESSION": SECRETS["session secret"],
        "ROLLMILL_TOKEN_FILE": str(token_file),
    }
    return workplace


def leaks(evidence: dict[str, str]) -> list[tuple[str, str]]:
    """Return which secret is seen where, however JSON writes it."""
    forms = {name: {secret, json.dumps(secret)[1:-1]} for name, secret in SECRETS.items()}
    return [
        (name, where)
        for where, text in evidence.items()
        for name, form in forms.items()
        if any(f in text for f in form)
    ]


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()
    }


def process_views(pids: dict[str, int]) -> dict[str, str]:
    views = {}
    for label, pid in pids.items():
        process = psutil.Process(pid)
        views[f"cmdline of {label}"] = " ".join(process.cmdline())
        views[f"environment of {label}"] = str(process.environ())
    return views


def answers(urls: dict[str, str]) -> dict[str, str]:
    """What every service says to good and to bad questions."""
    said = {}
    for headers in ({"authorization": f"Bearer {TOKEN}"}, {"authorization": "Bearer wrong"}, {}):
        with httpx.Client(headers=headers, timeout=30) as client:
            for label, url in urls.items():
                for method, path in ASKED if headers.get("authorization", "").endswith(TOKEN) else ASKED[:4]:
                    answer = client.request(method, url + path, json={"outcome": "crash"} if method == "POST" else None)
                    said[f"{method} {label}{path} {sorted(headers.values())}"] = f"{answer.headers} {answer.text}"
    return said


GETS = [
    "/v1/services",
    "/v1/runs/first",
    "/version",
    "/docs",
    "/livez",
    "/readyz",
    "/openapi.json",
    "/metrics",
    "/v1/runs",
    "/v1/runs/first/profile",
    "/v1/runs/first/rollouts",
]
POSTS = ["/seed_session", "/verify", "/run", "/v1/responses", "/v1/runs", "/v1/profile?level=summary", "/close_session"]
ASKED = [*(("GET", path) for path in GETS), *(("POST", path) for path in POSTS)]


def test_no_planted_secret_is_seen_anywhere(planted: "Workplace", engine: ThreadingHTTPServer) -> None:
    processes = planted.up()
    urls = {label: record.url for label, record in processes.items()}
    bearer = {"authorization": f"Bearer {TOKEN}"}
    body = {"id": "first", "max_attempts": 1, "rows": list(read_jsonl(planted.path / "tasks.jsonl"))}
    streamed = httpx.post(urls["collector"] + "/collect", json=body, headers=bearer, timeout=60)
    collected = planted.run(
        "collect", "-c", "t.yaml", "--input", "tasks.jsonl", "--output", "mine.jsonl", "--max-attempts", "1"
    )
    planted.run("profile", "--rollouts", "mine.jsonl", "--allow-partial", "--html", "report.html")
    for words in (["status", "--json"], ["list", "--json"], ["validate", "-c", "t.yaml", "--topology-only"]):
        assert planted.run(*words).returncode == 0
    planted.run("validate", "-c", "t.yaml")  # runs the environment; what it says of it is not the point here
    with_userinfo = f"http://user:{SECRETS['url']}@127.0.0.1:1"
    refused = [
        planted.run("status", "--head", with_userinfo),
        planted.run("validate", "-c", "t.yaml", ENGINE=with_userinfo),
        planted.run("serve", "weather", ROLLMILL_HEAD_URL=with_userinfo),
    ]
    evidence = {"stream": streamed.text, **answers(urls), **process_views({k: p.pid for k, p in processes.items()})}
    shown = files(planted.path)
    private = {name for name in shown if name == "token" or name.startswith(".rollmill/settings/")}
    evidence |= {name: text for name, text in shown.items() if name not in private} | {"commands": planted.said}

    # Everything was at work: each outcome happened, and the engine saw the key.
    assert engine.keys == {f"Bearer {SECRETS['api key']}"}  # type: ignore[attr-defined]
    assert '"state":"finished"' in streamed.text, streamed.text
    assert '"completed":1' in streamed.text
    assert collected.returncode == 3, collected.stderr
    assert [done.returncode for done in refused] == [1, 1, 1]
    failures = shown["mine_failures.jsonl"]
    assert "cannot log in as root:" in failures
    assert "bad key" in failures
    assert "ValueError" in shown[".rollmill/logs/vault.log"]
    assert len(evidence) > 150
    # The search is able to find: in the files that are meant to hold them, and in what an author gives away.
    assert {name for name, _ in leaks({n: shown[n] for n in private})} == {
        "token",
        "api key",
        "password",
        "session secret",
    }
    given_away = httpx.post(urls["vault"] + "/open", json={}, headers=bearer)
    assert leaks({"tool": given_away.text}) == [("password", "tool")]

    assert leaks(evidence) == []
    assert [name for name in private if (planted.path / name).stat().st_mode & 0o077] == []
