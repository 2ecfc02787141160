import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rollmill.artifacts import scanning
from rollmill.artifacts.chunks import Chunk
from rollmill.artifacts.files import RunFiles
from rollmill.artifacts.manifest import Counts, Digests, Manifest, Verifier
from rollmill.cli.profile import profile
from rollmill.contracts.json import JsonValue, dumps, loads
from rollmill.contracts.rows import Row
from rollmill.errors import InputError


def row(task: int, index: int, agent: str = "solver", **fields: JsonValue) -> Row:
    return {"_ng_task_index": task, "_ng_rollout_index": index, "agent_ref": {"name": agent}, **fields}


def write(path: Path, *rows: Row) -> None:
    path.write_bytes(b"".join(dumps(entry) + b"\n" for entry in rows))


def run(*arguments: str | Path, terminal: bool = False) -> Result:
    app = typer.Typer()
    app.command()(profile)
    env = {"FORCE_COLOR": "1" if terminal else "", "COLUMNS": "160", "TERM": "xterm"}
    return CliRunner().invoke(app, list(map(str, arguments)), env=env)


INPUTS = [row(0, 0), row(0, 1), row(1, 0), row(1, 1), row(2, 0, "a[b]"), row(2, 1, "a[b]")]
ROLLOUTS = [
    row(0, 0, reward=1.0),
    row(0, 1, reward=0.0),
    row(1, 0, reward=1.0),
    row(1, 1, reward=1.0),
    row(2, 0, "a[b]", reward=0.25),
    row(2, 1, "a[b]", reward=0.25),
]


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    files = RunFiles.at(tmp_path / "x.jsonl")
    write(files.inputs, *INPUTS)
    write(files.rollouts, *ROLLOUTS)
    return files


def test_it_writes_the_two_files_and_describes_each_agent(files: RunFiles) -> None:
    result = run("--rollouts", files.rollouts, "--inputs", files.inputs)

    assert result.exit_code == 0
    assert result.stderr == f"wrote {files.reward_profiling} and {files.agent_metrics}\n"
    other, solver = result.stdout.split("\n\n")
    assert re.match(r"a\[b\]  1 task, 2 rollouts\n  mean reward +0\.250\n", other)
    assert re.match(r"solver  2 tasks, 4 rollouts\n  mean reward +0\.750  \[", solver)
    assert re.search(r"\n  solve rate +0 none ·····█···· all 1  \(1 between\)\n", solver)
    tasks = [loads(line) for line in files.reward_profiling.read_bytes().splitlines()]
    assert [task["mean/reward"] for task in tasks] == [0.5, 1.0, 0.25]
    assert [agent["mean/reward"] for agent in loads(files.agent_metrics.read_bytes())] == [0.25, 0.75]


def test_the_input_rows_are_found_by_the_name_of_the_rollouts(files: RunFiles) -> None:
    assert run("--rollouts", files.rollouts).exit_code == 0


def test_a_terminal_is_shown_colours_and_a_pipe_is_not(files: RunFiles) -> None:
    styled = run("--rollouts", files.rollouts, terminal=True)
    plain = run("--rollouts", files.rollouts)

    assert "\x1b[1m" in styled.stdout
    assert "\x1b" not in plain.stdout
    assert re.sub(r"\x1b\[[0-9;]*m", "", styled.stdout) == plain.stdout
    assert "a[b]" in styled.stdout


def test_lines_are_not_broken_at_the_width_of_the_terminal(files: RunFiles) -> None:
    write(files.failures, {"agent_ref": {"name": "solver"}, "_ng_failure_class": "long-" * 60})

    assert "long-" * 60 in run("--rollouts", files.rollouts, terminal=True).stdout


def test_bars_are_digits_where_blocks_cannot_be_written(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", out)
    profile(files.rollouts)
    out.flush()

    assert b"0 none -----8---- all 1" in out.buffer.getvalue()


def test_failed_attempts_are_told_of_the_agent_they_are_of(files: RunFiles) -> None:
    failure = {"boundary": "model", "type": "upstream-timeout", "detail": "", "retryable": True}
    line = {**row(0, 0), "_ng_failure_class": "upstream-timeout", "_ng_failure_terminal": False, "failure": failure}
    write(files.failures, line, line)

    other, solver = run("--rollouts", files.rollouts).stdout.split("\n\n")
    assert "upstream-timeout 2  (in model 2)" in solver
    assert "failures" not in other


def test_the_report_is_one_page_with_the_conversations_of_the_run(files: RunFiles, tmp_path: Path) -> None:
    answer = {"type": "message", "role": "assistant", "content": "It is <b>42</b>."}
    write(files.rollouts, {**ROLLOUTS[0], "response": {"output": [answer]}}, *ROLLOUTS[1:])
    html = tmp_path / "new" / "report.html"
    result = run("--rollouts", files.rollouts, "--html", html)

    assert result.exit_code == 0
    assert f"wrote {html}\n" in result.stderr
    page = html.read_text(encoding="utf-8")
    assert "default-src &#x27;none&#x27;" in page
    assert "It is &lt;b&gt;42&lt;/b&gt;." in page
    assert "6 of 6 rollouts finished" in page
    assert "x.jsonl" in page


def test_the_report_names_the_run_and_what_graded_it(files: RunFiles, tmp_path: Path) -> None:
    Manifest(
        run_id="night-7",
        state="finished",
        counts=Counts(expected=6, completed=6),
        digests=Digests(input="", overrides=""),
        verifiers={"solver": Verifier(resources="math", name="math:Verifier", version="1.2")},
    ).write(files.manifest)
    run("--rollouts", files.rollouts, "--html", tmp_path / "report.html", "--seed", "5")

    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "night-7" in page
    assert "solver: math:Verifier 1.2" in page
    assert "<dt>seed</dt><dd>5</dd>" in page


def test_a_report_never_replaces_a_file_of_the_run(files: RunFiles) -> None:
    for path in (files.rollouts, files.inputs, files.reward_profiling):
        result = run("--rollouts", files.rollouts, "--html", path)
        assert "one of the run's own files" in str(result.exception)
    assert not files.reward_profiling.exists()


def test_missing_rollouts_need_allow_partial(files: RunFiles) -> None:
    write(files.rollouts, *ROLLOUTS[:3])

    result = run("--rollouts", files.rollouts)

    assert result.exit_code == 1
    assert isinstance(result.exception, InputError)
    assert "1:1, 2:0, 2:1" in result.exception.detail
    assert "--allow-partial" in result.exception.detail
    assert result.exception.extensions["count"] == 3
    assert not files.reward_profiling.exists()


def test_a_partial_profile_says_how_complete_it_is(files: RunFiles) -> None:
    write(files.rollouts, *ROLLOUTS[:3])

    result = run("--rollouts", files.rollouts, "--allow-partial")

    assert result.exit_code == 0
    assert "solver  2 tasks, 3 of 4 rollouts\n" in result.stdout
    assert result.stdout.startswith("a[b]  0 tasks, 0 of 2 rollouts\n\n")
    assert "partial: 3 of 6 rollouts are finished\n" in result.stderr


def test_a_run_that_has_not_written_anything_yet_has_an_empty_profile(tmp_path: Path) -> None:
    files = RunFiles.at(tmp_path / "x.jsonl")
    digests = Digests(input="", overrides="")
    Manifest(run_id="x", counts=Counts(expected=4), digests=digests).write(files.manifest)

    result = run("--rollouts", files.rollouts, "--allow-partial")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "partial: 0 of 4" in result.stderr
    refused = run("--rollouts", files.rollouts)
    assert isinstance(refused.exception, InputError)
    assert "4 of 4 rollouts were not started yet" in refused.exception.detail
    assert "--allow-partial" in refused.exception.detail


def test_missing_files_are_named_with_the_fix(tmp_path: Path) -> None:
    result = run("--rollouts", tmp_path / "x.jsonl")

    assert isinstance(result.exception, InputError)
    assert "x_materialized_inputs.jsonl: no such file" in result.exception.detail
    assert "--inputs" in result.exception.detail

    write(tmp_path / "i.jsonl", *INPUTS)
    result = run("--rollouts", tmp_path / "x.jsonl", "--inputs", tmp_path / "i.jsonl")
    assert isinstance(result.exception, InputError)
    assert "x.jsonl: No such file" in result.exception.detail


@pytest.mark.parametrize("options", [[], ["--allow-partial"]])
def test_faults_that_a_partial_profile_would_not_help_do_not_suggest_one(files: RunFiles, options: list[str]) -> None:
    write(files.rollouts, *ROLLOUTS[:2], ROLLOUTS[0])
    duplicate = run("--rollouts", files.rollouts, *options)
    write(files.rollouts, *ROLLOUTS[:2], row(9, 0))
    extra = run("--rollouts", files.rollouts, *options)

    assert (duplicate.exit_code, extra.exit_code) == (1, 1)
    assert str(duplicate.exception) == "duplicate keys in the rollouts: 0:0"
    assert str(extra.exception) == "rollouts with no input row: 9:0"


def test_an_output_that_is_no_jsonl_file_is_refused(tmp_path: Path) -> None:
    result = run("--rollouts", tmp_path / "x.json")

    assert isinstance(result.exception, InputError)
    assert ".jsonl" in result.exception.detail


def test_input_rows_that_lie_elsewhere_say_how_many_rollouts_to_expect(files: RunFiles, tmp_path: Path) -> None:
    elsewhere = files.inputs.rename(tmp_path / "elsewhere.jsonl")
    write(files.rollouts, *ROLLOUTS[:3])

    result = run("--rollouts", files.rollouts, "--inputs", elsewhere, "--allow-partial")

    assert "solver  2 tasks, 3 of 4 rollouts\n" in result.stdout
    assert "a[b]  0 tasks, 0 of 2 rollouts\n" in result.stdout


def test_each_file_of_a_run_without_a_manifest_is_read_once(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollmill.artifacts import columns

    read: list[Path] = []

    @contextmanager
    def scan(path: Path, **options: object) -> Iterator[Iterator[Chunk]]:
        read.append(path)
        with scanning.scan(path, **options) as chunks:  # type: ignore[arg-type]
            yield chunks

    monkeypatch.setattr(columns, "scan", scan)

    assert run("--rollouts", files.rollouts).exit_code == 0
    assert sorted(read) == sorted([files.rollouts, files.inputs])
