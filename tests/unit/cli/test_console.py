import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner, Result

from rollmill.cli.console import emit, emit_json, guarded, table, tell
from rollmill.errors import InputError


def run(error: BaseException | None) -> Result:
    cli = typer.Typer()

    @cli.callback()
    def root() -> None:
        pass

    @cli.command()
    @guarded
    def work() -> None:
        emit("a result")
        if error is not None:
            raise error

    return CliRunner().invoke(cli, ["work"])


def test_results_go_to_stdout_and_everything_else_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    emit("result")
    emit_json({"a": [1]})
    tell("said")

    out, err = capsys.readouterr()
    assert out == 'result\n{\n  "a": [\n    1\n  ]\n}\n'
    assert err == "said\n"


def test_a_command_that_ends_well_exits_with_0() -> None:
    result = run(None)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "a result\n", "")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("x.jsonl:3: not JSON"), "error: x.jsonl:3: not JSON\n"),
        (InputError("one\ntwo"), "error: one\ntwo\n"),
        (ExceptionGroup("all", [ExceptionGroup("inner", [InputError("deep")])]), "error: deep\n"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), "error: a.txt: No such file or directory\n"),
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
        (ZeroDivisionError("oh"), "error: ZeroDivisionError: oh (ROLLMILL_DEBUG=1 shows where)\n"),
        (KeyboardInterrupt(), "interrupted\n"),
    ],
)
def test_an_error_is_told_without_a_traceback_and_exits_with_1(
    error: BaseException, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROLLMILL_DEBUG", raising=False)

    result = run(error)

    assert (result.exit_code, result.stderr) == (1, words)


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_DEBUG", "1")

    result = run(InputError("wrong"))

    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: wrong\n")


@pytest.mark.parametrize(("error", "code"), [(typer.Exit(3), 3), (typer.BadParameter("no"), 2), (typer.Abort(), 1)])
def test_exit_codes_of_the_command_itself_are_kept(error: Exception, code: int) -> None:
    assert run(error).exit_code == code


def test_a_reader_that_has_enough_is_no_reason_for_a_traceback() -> None:
    code = (
        "import typer\nfrom rollmill.cli.console import emit, guarded\n"
        "def work() -> None:\n    for n in range(100_000): emit('x' * 100)\n"
        "cli = typer.Typer(); cli.command()(guarded(work)); cli()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        errors = process.stderr.read()

    assert process.returncode == 1
    assert errors == b""


def test_a_table_has_aligned_columns_and_shows_control_characters() -> None:
    assert table(["NAME", "URL"], [["a", "x"], ["longer", "\x1b[2J"]]).splitlines() == [
        "NAME    URL",
        "a       x",
        r"longer  \x1b[2J",
    ]
