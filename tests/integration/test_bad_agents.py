"""Agents that misbehave over real sockets: each rollout is still settled, with the reason in the failures file."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rollmill.artifacts.reader import read_rollouts
from rollmill.cli.main import build_cli
from rollmill.client.directory import StaticDirectory
from rollmill.client.http import HttpTransport
from rollmill.client.service_client import ServiceClient
from rollmill.collection.collector import CollectionPlan, Collector
from rollmill.contracts.json import JsonObject, dumps, loads
from rollmill.contracts.runs import RunOptions, RunStatus
from rollmill.contracts.services import Instance, ServiceList

Misbehave = Callable[[JsonObject], bytes]
"""From the row to the whole HTTP answer."""
HUGE_BYTES = 100 * 1024 * 1024


def http(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def graded(row: JsonObject, **changes: object) -> bytes:
    return http(dumps({**row, "reward": 1.0, **changes}))


def raw_reward(text: str) -> Misbehave:
    return lambda row: http(dumps(row)[:-1] + f',"reward":{text}}}'.encode())


WAYS: dict[str, tuple[Misbehave, str, str]] = {
    "another key": (lambda row: graded(row, _ng_task_index=77), "wrong-row", "the row of another rollout"),
    "another repeat": (lambda row: graded(row, _ng_rollout_index=5), "wrong-row", "the row of another rollout"),
    "no reward": (lambda row: http(dumps(row)), "invalid-reward", "must be a finite number"),
    "null reward": (lambda row: graded(row, reward=None), "invalid-reward", "must be a finite number"),
    "NaN reward": (raw_reward("NaN"), "invalid-answer", "not valid JSON"),
    "infinite reward": (raw_reward("1e999"), "invalid-answer", "not valid JSON"),
    "text as reward": (lambda row: graded(row, reward="1.0"), "invalid-reward", "must be a finite number"),
    "100 MB": (lambda row: graded(row, pad="x" * HUGE_BYTES), "upstream-failed", "larger than 67108864 bytes"),
    "invalid UTF-8": (lambda row: http(b'{"reward": 1.0, "x": "\xff\xfe"}'), "invalid-answer", "not valid JSON"),
    "no JSON": (lambda row: http(b"<html>"), "invalid-answer", "not valid JSON"),
    "a list": (lambda row: http(b"[]"), "invalid-answer", "not a JSON object"),
    "half an answer": (lambda row: graded(row)[:-20], "connection-lost", ""),
    "no answer": (lambda row: b"", "connection-lost", ""),
    "garbage": (lambda row: b"\x00\x01\x02\r\n\r\n", "connection-lost", ""),
    "a redirect": (
        lambda row: http(b"", "302 Found", "Location: http://elsewhere.test/run\r\n"),
        "upstream-failed",
        "HTTP 302: a redirect to http://elsewhere.test/run, which is not followed",
    ),
    "an error page": (lambda row: http(b"oops", "500 Oops"), "upstream-failed", "HTTP 500: oops"),
}


class BadAgent:
    """Answers `/run` as the row's `way` says, and closes the connection; anything else gets an empty metrics object."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = next((int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"content-length:")), 0)
            writer.write(self.answer(head, loads(await reader.readexactly(length) or b"{}")))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def answer(self, head: bytes, body: JsonObject) -> bytes:
        if b" /run " not in head:
            return http(b"{}")
        way = body.get("way")
        return WAYS[way][0](body) if way else graded(body)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        listener = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        finally:
            listener.close()
            await listener.wait_closed()


def write_tasks(folder: Path, ways: list[str]) -> Path:
    path = folder / "tasks.jsonl"
    rows: list[JsonObject] = [
        {"responses_create_params": {"input": way or "good"}, "agent_ref": {"name": "a"}, "way": way} for way in ways
    ]
    path.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    return path


async def collect(url: str, tasks: Path, output: Path, *, max_attempts: int = 1) -> RunStatus:
    transport = HttpTransport()
    directory = StaticDirectory([Instance(name="a", instance="a", kind="agent", url=url)])
    options = RunOptions(max_attempts=max_attempts, fail_fast_count=0, timeout_seconds=30)
    try:
        return await Collector(CollectionPlan(tasks, output, options), ServiceClient(transport, directory)).run()
    finally:
        await transport.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_a_bad_answer_fails_its_own_rollout_and_no_other(tmp_path: Path, way: str) -> None:
    _, kind, detail = WAYS[way]
    async with BadAgent().serving() as url:
        status = await collect(url, write_tasks(tmp_path, ["", way, ""]), tmp_path / "x.jsonl")

    assert (status.state, status.completed, status.failed) == ("finished", 2, 1)
    assert sorted(row["_ng_rollout_index"] for row in read_rollouts(tmp_path / "x.jsonl")) == [0, 1]
    [line] = read_rollouts(tmp_path / "x_failures.jsonl")
    assert (line["_ng_failure_class"], line["failure"]["type"], line["failure"]["boundary"]) == (kind, kind, "agent")
    assert detail in line["failure"]["detail"]
    assert len(dumps(line)) < 10_000
    assert "reward" not in line


class LateAgent(BadAgent):
    """Loses its first answer to each rollout; later it gives the lost one, or the one that was asked for."""

    def __init__(self, *, stale: bool) -> None:
        self._stale = stale
        self._lost: dict[int, JsonObject] = {}

    def answer(self, head: bytes, body: JsonObject) -> bytes:
        if b" /run " not in head:
            return http(b"{}")
        number = body["_ng_rollout_index"]
        if "_ng_attempt_index" not in body:
            self._lost[number] = body
            return http(b"", "503 Busy", "Retry-After: 0\r\n")
        return graded({**self._lost[number], "_ng_attempt_index": 0} if self._stale else body)


@pytest.mark.parametrize("stale", [True, False])
async def test_a_late_answer_of_an_older_attempt_does_not_pass_for_the_newer_one(tmp_path: Path, stale: bool) -> None:
    async with LateAgent(stale=stale).serving() as url:
        status = await collect(url, write_tasks(tmp_path, [""]), tmp_path / "x.jsonl", max_attempts=2)

    kinds = [line["_ng_failure_class"] for line in read_rollouts(tmp_path / "x_failures.jsonl")]
    assert kinds == (["overloaded", "wrong-row"] if stale else ["overloaded"])
    assert [row["_ng_attempt_index"] for row in read_rollouts(tmp_path / "x.jsonl")] == ([] if stale else [1])
    assert status.failed == stale


class BadAgentWithHead(BadAgent):
    """Is its own head as well, so that the command line finds it."""

    def answer(self, head: bytes, body: JsonObject) -> bytes:
        if b"/v1/services" not in head:
            return super().answer(head, body)
        host = next(h[5:].strip().decode() for h in head.split(b"\r\n") if h.startswith(b"host:"))
        known = ServiceList(services=[Instance(name="a", instance="a", kind="agent", url=f"http://{host}")])
        return http(known.model_dump_json().encode(), headers="Content-Type: application/json\r\n")


async def test_all_of_them_in_one_run_leave_exit_code_3_and_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ROLLMILL_TOKEN", "t")
    ways = ["", *WAYS, ""]
    tasks = write_tasks(tmp_path, ways)
    options = ["--input", str(tasks), "--output", str(tmp_path / "x.jsonl"), "--max-attempts", "1"]
    async with BadAgentWithHead().serving() as url:
        command = [sys.executable, "-m", "rollmill", "collect", "--head", url, *options]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        _, told = await process.communicate()

    assert process.returncode == 3, told
    assert f"{len(WAYS)} rollouts failed for good" in told.decode()
    failed = [line["_ng_task_index"] for line in read_rollouts(tmp_path / "x_failures.jsonl")]
    done = [row["_ng_task_index"] for row in read_rollouts(tmp_path / "x.jsonl")]
    assert len(failed) == len(set(failed)) == len(WAYS)
    assert sorted(done) == [0, 0]
    assert json.loads((tmp_path / "x_manifest.json").read_text())["state"] == "finished"


@pytest.mark.parametrize(
    ("flag", "value", "told"),
    [
        ("--concurrency", "0", "greater than or equal to 1"),
        ("--concurrency", "-3", "greater than or equal to 1"),
        ("--concurrency", "99999999999", "less than or equal to 65536"),
        ("--timeout", "0", "greater than or equal to 0.001"),
        ("--timeout", "-1", "greater than or equal to 0.001"),
        ("--timeout", "nan", "greater than or equal to 0.001"),
        ("--max-wall", "0", "greater than or equal to 0.001"),
        ("--max-tokens-total", "0", "greater than or equal to 1"),
        ("--max-failures", "-1", "greater than or equal to 1"),
        ("--stop-grace", "-1", "greater than or equal to 0"),
    ],
)
def test_a_number_that_cannot_be_is_wrong_usage_and_names_the_range(
    tmp_path: Path, flag: str, value: str, told: str
) -> None:
    tasks = write_tasks(tmp_path, [""])
    output = tmp_path / "x.jsonl"
    words = ["--head", "http://127.0.0.1:1", "--input", str(tasks), "--output", str(output), flag, value]
    result = CliRunner().invoke(build_cli(), ["collect", *words])
    assert result.exit_code == 2
    assert f"Invalid value for '{flag}': Input should be {told}" in " ".join(result.stderr.replace("│", " ").split())
    assert not output.exists()
