import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from rollmill.cli.console import tell
from rollmill.errors import ConflictError, InputError

if TYPE_CHECKING:
    from rollmill.collection.prompts import PromptConfig
    from rollmill.contracts.rows import Row

SHOWN: Final = 20
"""Most faults listed in one error."""


def render(
    source: Annotated[Path, typer.Option("--input", help="JSONL file with one task a line.")],
    prompt_config: Annotated[Path, typer.Option(help="YAML file with `user` and, if wanted, `system`.")],
    output: Annotated[Path, typer.Option(help="Where the rows with their input go.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")] = False,
) -> None:
    """Write tasks with the input that a prompt config makes of their fields."""
    from rollmill.collection.prompts import load_prompt

    prompt = load_prompt(prompt_config)
    if output.exists() and source.exists() and output.samefile(source):
        raise InputError(f"{output} is the input itself; choose another --output")
    if output.exists() and not overwrite:
        raise ConflictError(f"{output} exists; choose another --output, or replace it with --overwrite")
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            count = render_rows(source, prompt, file)
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)
    tell(f"{output}: {count} row{'s' * (count != 1)}")


def render_rows(source: Path, prompt: "PromptConfig", file: BinaryIO) -> int:
    """Render every row of a file and return their number.

    Raises:
        InputError: lists every row that cannot be rendered, by line number.
    """
    from rollmill.artifacts.reader import iter_lines, parse_line
    from rollmill.contracts.json import dumps

    count = 0
    faults: list[str] = []
    for number, line in iter_lines(source):
        row = parse_line(source, number, line)
        if fault := _fault(row, prompt):
            faults.append(f"line {number}: {fault}")
            continue
        file.write(dumps(prompt.apply(row)) + b"\n")
        count += 1
    if faults:
        more = [f"and {len(faults) - SHOWN} more"] if len(faults) > SHOWN else []
        raise InputError("\n".join([f"{source}: {len(faults)} rows cannot be rendered:", *faults[:SHOWN], *more]))
    return count


def _fault(row: "Row", prompt: "PromptConfig") -> str:
    """Say why a row cannot be rendered; empty when it can."""
    from rollmill.collection.prompts import has_input

    if has_input(row):
        return "has an input already"
    if missing := sorted(prompt.fields() - row.keys()):
        return f"lacks {', '.join(missing)}"
    try:
        prompt.render(row)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        return f"does not fit the template: {error}"
    return ""
