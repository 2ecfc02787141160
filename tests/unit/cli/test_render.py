import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rollmill.cli.main import build_cli


class Files:
    def __init__(self, folder: Path) -> None:
        self.tasks, self.prompt, self.output = folder / "raw.jsonl", folder / "p.yaml", folder / "out" / "rows.jsonl"
        self.prompt.write_text("{user: 'What is {a} + {b:>3}?', system: Be short.}")

    def write(self, *rows: object) -> None:
        self.tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def render(self, *options: str) -> Result:
        arguments = ["--input", self.tasks, "--prompt-config", self.prompt, "--output", self.output]
        return CliRunner().invoke(build_cli(), ["render", *map(str, arguments), *options])


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_rows_get_the_input_that_the_prompt_makes_of_them(files: Files) -> None:
    files.write({"a": 1, "b": 2, "responses_create_params": {"temperature": 0.5}}, {"a": 3, "b": 4})

    result = files.render()

    first, second = map(json.loads, files.output.read_text().splitlines())
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "2 rows" in result.stderr
    assert first["a"] == 1
    assert first["responses_create_params"] == {
        "temperature": 0.5,
        "input": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is 1 +   2?"}],
    }
    assert second["responses_create_params"]["input"][1]["content"] == "What is 3 +   4?"


def test_all_rows_that_cannot_be_rendered_are_listed_and_nothing_is_written(files: Files) -> None:
    ready = {"a": 1, "b": 2, "responses_create_params": {"input": "hi"}}
    files.write({"a": 1}, {"a": 1, "b": 2}, ready, {}, {"a": 1, "b": [2]})

    result = files.render()

    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line.startswith("line")] == [
        "line 1: lacks b",
        "line 3: has an input already",
        "line 4: lacks a, b",
        "line 5: does not fit the template: unsupported format string passed to list.__format__",
    ]
    assert list(files.output.parent.iterdir()) == []


def test_a_long_list_of_faults_is_cut(files: Files) -> None:
    files.write(*[{}] * 30)

    told = files.render().stderr.splitlines()

    assert told[0].endswith("30 rows cannot be rendered:")
    assert told[-1] == "and 10 more"


def test_a_line_that_is_no_json_is_named(files: Files) -> None:
    files.tasks.write_text('{"a": 1, "b": 2}\nnonsense\n')

    result = files.render()

    assert result.exit_code == 1
    assert "raw.jsonl:2: not valid JSON" in result.stderr


def test_an_existing_output_is_kept_unless_it_is_to_be_replaced(files: Files) -> None:
    files.write({"a": 1, "b": 2})
    files.output.parent.mkdir()
    files.output.write_text("precious")

    refused = files.render()
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    assert files.output.read_text() == "precious"

    assert files.render("--overwrite").exit_code == 0
    assert json.loads(files.output.read_text())["a"] == 1


def test_the_input_is_never_overwritten(files: Files) -> None:
    files.write({"a": 1, "b": 2})
    files.output = files.tasks

    result = files.render("--overwrite")

    assert result.exit_code == 1
    assert "is the input itself" in result.stderr
    assert json.loads(files.tasks.read_text()) == {"a": 1, "b": 2}
