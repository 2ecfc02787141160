import asyncio
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rollmill.cli.collecting import Source
from rollmill.cli.main import build_cli
from rollmill.cli.progress import CollectProgress
from rollmill.collection.stats import RunStats
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.contracts.runs import RunOptions, RunStatus

TOPOLOGY = """
services:
  policy: {{kind: model, use: scripted, settings: {{answers: [tasks.jsonl], skill: 1.0, delay_seconds: {delay}}}}}
  words: {{kind: resources, use: string_match}}
  solver: {{kind: agent, use: single_turn, settings: {{model: policy, resources: words}}}}
datasets:
  - {{agent: solver, path: tasks.jsonl, num_repeats: 2, split: train}}
  - {{agent: solver, path: other.jsonl, num_repeats: 2, split: validation}}
"""


class Bench:
    """A folder with a topology and tasks, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "out" / "x.jsonl"
        self.tasks = folder / "tasks.jsonl"
        self.write("tasks.jsonl", *(task(n) for n in range(3)))
        self.write("other.jsonl", task(7))
        self.topology()

    def topology(self, delay: float = 0.0) -> None:
        (self.folder / "t.yaml").write_text(TOPOLOGY.format(delay=delay))

    def write(self, name: str, *rows: JsonValue) -> Path:
        (self.folder / name).write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
        return self.folder / name

    def collect(self, *options: str, output: str | None = None) -> Result:
        words = ["collect", "-c", str(self.folder / "t.yaml"), "--embedded", "--output", output or str(self.output)]
        return run(*words, *options)

    def rows(self, suffix: str = "") -> list[JsonObject]:
        return [loads(line) for line in self.output.with_name(f"x{suffix}.jsonl").read_bytes().splitlines()]


def run(*words: str) -> Result:
    return CliRunner().invoke(build_cli(), list(words))


def task(number: int, **fields: JsonValue) -> JsonObject:
    text = f"What is the name of number {number}?"
    return {"responses_create_params": {"input": text}, "expected_answer": f"name {number}", **fields}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("ROLLMILL_HOME", str(tmp_path / "home"))
    for name in ("ROLLMILL_TOKEN", "ROLLMILL_HEAD_URL", "ROLLMILL_DEBUG", "ROLLMILL_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return Bench(tmp_path)


def test_stdout_holds_only_the_path_of_the_rollouts(bench: Bench) -> None:
    result = bench.collect("--input", str(bench.tasks), "--agent", "solver")

    assert (result.exit_code, result.stdout) == (0, f"{bench.output}\n"), result.output
    assert "solver: 3 of 3 rollouts, mean reward" in result.stderr
    assert len(bench.rows()) == 3
    assert (bench.output.parent / "x_aggregate_metrics.json").exists()


def test_the_datasets_of_a_topology_are_run_when_there_is_no_input(bench: Bench) -> None:
    result = bench.collect()

    assert result.exit_code == 0, result.output
    assert sorted(row["expected_answer"] for row in bench.rows()) == [f"name {n}" for n in (0, 0, 1, 1, 2, 2, 7, 7)]


def test_a_split_is_one_of_the_datasets(bench: Bench) -> None:
    assert bench.collect("--split", "validation").exit_code == 0
    assert [row["expected_answer"] for row in bench.rows()] == ["name 7", "name 7"]


def test_each_option_reaches_the_plan(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []

    def record(source: Source, output: Path, options: RunOptions, prompt: Path | None, **how: bool) -> RunStatus:
        seen.append((source, output, options, prompt, how))
        raise typer.Exit(0)

    monkeypatch.setattr("rollmill.cli.collecting.run_collection", record)
    words = "--agent A --concurrency 5 --limit 6 --shard 1/2 --temperature 0.5 --top-p 0.25 --max-output-tokens 7 --add-seed"
    words += " --no-aggregate --timeout 8.5 --max-attempts 9 --resume --param top_k=5 --param stop=END"
    words += " --prompt-config p.yaml --input i.jsonl"
    words += " --max-tokens-total 100 --max-wall 2.5 --max-failures 4 --stop-grace 0"
    bench.collect(*words.split(), "--num-repeats", "{a: 4, _default: 1}")

    [(source, output, options, prompt, how)] = seen
    assert source == Source(bench.folder / "t.yaml", None, True, Path("i.jsonl"), None)
    shard = bench.output.with_name("x-00001-of-00002.jsonl")
    assert (output, prompt, how) == (shard, Path("p.yaml"), {"resume": True, "overwrite": False})
    assert options == RunOptions(
        agent="A",
        num_repeats={"a": 4, "_default": 1},
        add_seed=True,
        limit=6,
        shard="1/2",
        concurrency=5,
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=7,
        params={"top_k": 5, "stop": "END"},
        timeout_seconds=8.5,
        max_attempts=9,
        aggregate=False,
        max_tokens_total=100,
        max_wall_seconds=2.5,
        max_failures=4,
        stop_grace_seconds=0,
    )


def test_parameters_prompt_and_seed_reach_the_rows(bench: Bench) -> None:
    path = bench.write("q.jsonl", {"q": "a"}, {"q": "b"})
    (bench.folder / "p.yaml").write_text("user: 'Name {q}'\nsystem: Be short\n")
    words = "--agent solver --limit 1 --num-repeats 2 --add-seed --temperature 0.5 --param top_k=5 --no-aggregate"
    result = bench.collect("--input", str(path), "--prompt-config", str(bench.folder / "p.yaml"), *words.split())

    failed = [row["failure"] for row in bench.rows("_failures")]
    assert result.exit_code == 3, result.output  # these tasks have no expected answer
    assert {failure["boundary"] for failure in failed} == {"resources"}
    params = [row["responses_create_params"] for row in bench.rows("_materialized_inputs")]
    assert [(entry["temperature"], entry["top_k"]) for entry in params] == [(0.5, 5)] * 2
    assert [loads(entry["metadata"]["extra_body"])["seed"] for entry in params] == [0, 1]
    assert "Name a" in str(params[0]["input"])
    assert "Be short" in str(params[0])
    assert not (bench.output.parent / "x_aggregate_metrics.json").exists()


def test_failed_rollouts_are_exit_code_3_and_told(bench: Bench) -> None:
    path = bench.write("mixed.jsonl", task(0), {"responses_create_params": {"input": "no answer is known"}})
    result = bench.collect("--input", str(path), "--agent", "solver")

    assert (result.exit_code, result.stdout) == (3, f"{bench.output}\n")
    assert "1 rollouts failed for good" in result.stderr
    assert str(bench.output.with_name("x_failures.jsonl")) in result.stderr


def test_a_budget_that_is_used_up_is_exit_code_3_and_a_larger_one_goes_on(bench: Bench) -> None:
    rows = [task(0), *({"responses_create_params": {"input": f"no answer {n}"}} for n in range(3)), task(1)]
    options = ["--input", str(bench.write("mixed.jsonl", *rows)), "--agent", "solver", "--concurrency", "1"]
    result = bench.collect(*options, "--max-failures", "1")
    assert (result.exit_code, result.stdout) == (3, f"{bench.output}\n")
    assert "stopped by its budget: 1 of 1 rollouts failed. Go on with --resume" in result.stderr

    assert bench.collect(*options, "--resume", "--max-failures", "9").exit_code == 3  # failed rollouts are left
    assert len(bench.rows()) == 2


def test_an_output_that_exists_is_refused_with_the_fix(bench: Bench) -> None:
    bench.collect("--split", "train")
    before = bench.output.read_bytes()

    result = bench.collect("--split", "train")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--resume" in result.stderr
    assert "--overwrite" in result.stderr
    assert bench.output.read_bytes() == before
    assert bench.collect("--split", "train", "--resume").exit_code == 0
    assert bench.output.read_bytes() == before
    assert bench.collect("--split", "validation", "--overwrite").exit_code == 0
    assert len(bench.rows()) == 2


def test_a_resume_of_another_run_says_what_changed(bench: Bench) -> None:
    bench.collect("--split", "train")

    result = bench.collect("--split", "train", "--num-repeats", "3", "--resume")
    assert result.exit_code == 1
    assert "repeats, seeds, limit, agent or request parameters changed" in result.stderr


def test_a_malformed_line_is_named_before_anything_runs(bench: Bench) -> None:
    bench.tasks.write_text(f"{dumps(task(0)).decode()}\n\n{{broken\n")
    result = bench.collect("--input", str(bench.tasks), "--agent", "solver")

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"{bench.tasks}:3: not valid JSON" in result.stderr
    assert not bench.output.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--input", "missing.jsonl"], "missing.jsonl: No such file"),
        (["--input", "{tasks}"], "no agent_ref"),
        (["--input", "{tasks}", "--agent", "nobody"], "no agent is called 'nobody'; the agents are: solver"),
        (["--split", "benchmark"], "no dataset of split 'benchmark'"),
        (["--prompt-config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_what_cannot_run_is_exit_code_1_with_the_reason(bench: Bench, options: list[str], told: str) -> None:
    result = bench.collect(*(word.format(tasks=bench.tasks) for word in options))

    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr


def test_an_output_must_be_jsonl(bench: Bench) -> None:
    result = bench.collect(output=str(bench.folder / "x.json"))

    assert result.exit_code == 1
    assert ".jsonl" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--resume", "--overwrite"],
        ["--input", "a.jsonl", "--split", "train"],
        ["--num-repeats", "many"],
        ["--num-repeats", "0"],
        ["--param", "nothing"],
        ["--top-p", "0"],
        ["--top-p", "1.5"],
        ["--temperature", "-1"],
        ["--temperature", "nan"],
        ["--concurrency", "0"],
        ["--limit", "0"],
        ["--shard", "2/2"],
        ["--shard", "1"],
        ["--max-attempts", "0"],
        ["--timeout", "0"],
        ["--split", "test"],
        ["--head", "http://127.0.0.1:1"],
        ["--surprise"],
    ],
)
def test_wrong_usage_is_exit_code_2(bench: Bench, options: list[str]) -> None:
    result = bench.collect(*options)

    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert not bench.output.parent.exists()


@pytest.mark.parametrize(
    "words", [["--output", "x.jsonl"], ["-c", "t.yaml"], ["--embedded", "--head", "http://h", "--output", "x.jsonl"]]
)
def test_a_source_and_an_output_are_needed(words: list[str]) -> None:
    assert run("collect", *words).exit_code == 2


def test_a_head_that_does_not_answer_is_told_with_the_fix(bench: Bench) -> None:
    words = ["--head", "http://127.0.0.1:9", "--input", str(bench.tasks), "--agent", "solver"]
    result = run("collect", "--output", str(bench.output), *words)

    assert (result.exit_code, result.stdout) == (1, "")
    assert "using the services at http://127.0.0.1:9" in result.stderr
    assert "no head answers" in result.stderr
    assert "rollmill up" in result.stderr


def test_a_head_needs_an_input(bench: Bench) -> None:
    result = run("collect", "--output", str(bench.output), "--head", "http://127.0.0.1:9")

    assert result.exit_code == 1
    assert "--input" in result.stderr


def test_unused_agents_in_the_repeats_are_a_warning(bench: Bench) -> None:
    result = bench.collect("--split", "train", "--num-repeats", "{solver: 1, nobody: 2}")

    assert result.exit_code == 0
    assert "warning: num_repeats lists agents that no row uses: nobody" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_cleanly_and_a_resume_completes_the_run(bench: Bench, number: signal.Signals) -> None:
    bench.topology(delay=0.15)
    words = ["--split", "train", "--num-repeats", "8", "--concurrency", "3"]
    command = [sys.executable, "-m", "rollmill", "collect", "-c", str(bench.folder / "t.yaml"), "--embedded"]
    with subprocess.Popen(
        [*command, "--output", str(bench.output), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in _polls(process):
            if bench.output.exists() and bench.output.stat().st_size:
                break
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=30)

    assert (process.returncode, stdout) == (1, ""), stderr
    assert "of 24 rollouts are settled" in stderr
    assert "--resume" in stderr
    assert bench.output.read_bytes().endswith(b"\n")
    manifest = loads(bench.output.with_name("x_manifest.json").read_bytes())
    assert manifest["state"] == "interrupted"
    assert manifest["counts"]["completed"] == len(bench.rows()) < 24
    bench.topology(delay=0)  # how long an answer takes makes no other run
    assert bench.collect(*words, "--resume").exit_code == 0
    keys = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in bench.rows()]
    assert sorted(keys) == [(task, repeat) for task in range(3) for repeat in range(8)]
    assert len(bench.rows("_materialized_inputs")) == 24


def _polls(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Tick for at most half a minute, while the process lives."""
    for _ in range(1500):
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            yield
        else:
            return


def test_a_terminal_gets_a_progress_bar(bench: Bench) -> None:
    bench.topology(delay=0.3)
    command = [sys.executable, "-m", "rollmill", "collect", "-c", str(bench.folder / "t.yaml"), "--embedded"]
    terminal, theirs = pty.openpty()
    with subprocess.Popen(
        [*command, "--output", str(bench.output), "--split", "train"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    ) as process:
        os.close(theirs)
        shown = _read_all(terminal)
        stdout, _ = process.communicate(timeout=30)

    assert (process.returncode, stdout) == (0, f"{bench.output}\n"), shown
    assert "6/6" in shown
    assert "/s, mean reward" in shown
    assert "Traceback" not in shown
    assert "never retrieved" not in shown


def _read_all(terminal: int) -> str:
    parts = []
    try:
        while data := os.read(terminal, 65536):
            parts.append(data)
    except OSError:  # what Linux says when the other end is closed
        pass
    os.close(terminal)
    return b"".join(parts).decode()


async def test_lines_of_progress_go_to_stderr(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rollmill.cli.progress.LINE_SECONDS", 0.01)
    stats = RunStats("r")
    stats.expect({"solver": 4})
    stats.completed("solver", 0.5)
    lines = ""
    async with CollectProgress(stats.status), asyncio.timeout(10):
        while not lines:
            await asyncio.sleep(0.01)
            lines = capsys.readouterr().err
    assert lines.startswith("1 of 4 (25 %), 0.0/s, mean reward 0.500\n")
