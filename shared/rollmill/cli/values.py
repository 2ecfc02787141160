from collections.abc import Sequence
from pathlib import Path

import typer
import yaml
from pydantic import ValidationError

from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.runs import RunOptions
from rollmill.contracts.shards import ShardNumber


def parse_options(**values: JsonValue) -> RunOptions:
    """Make the options of a run.

    Raises:
        typer.BadParameter: a value is out of its range, such as `--top-p 0`; names all that are.
    """
    try:
        return RunOptions.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        told = [f"--{'.'.join(map(str, fault['loc'])).replace('_', '-')}: {fault['msg']}" for fault in faults]
        raise typer.BadParameter("; ".join(told)) from None


def shard_output(output: Path, options: RunOptions) -> Path:
    """Return the file that the rollouts go to: each shard has its own, named after the whole run's."""
    return ShardNumber.parse(options.shard).output(output) if options.shard else output


def parse_repeats(text: str | None) -> int | dict[str, int] | None:
    """Parse `--num-repeats`: an integer, or a mapping from agent to integer as YAML.

    Raises:
        typer.BadParameter: it is neither, or a number is below 1; names all that are.
    """
    if text is None:
        return None
    wrong = typer.BadParameter(f"--num-repeats takes 4 or '{{agent: 4, _default: 1}}', got {text!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise wrong from None
    named = value if isinstance(value, dict) else {"--num-repeats": value}
    if not named or not all(isinstance(n, int) and not isinstance(n, bool) for n in named.values()):
        raise wrong
    if low := [f"{name}: {count}" for name, count in named.items() if count < 1]:
        raise typer.BadParameter(f"repeats must be at least 1, got {', '.join(low)}")
    return {str(name): count for name, count in named.items()} if isinstance(value, dict) else value


def parse_params(pairs: Sequence[str]) -> JsonObject:
    """Parse `--param key=value` options; a value that is not JSON is text.

    Raises:
        typer.BadParameter: an option has no `=`.
    """
    params: JsonObject = {}
    for pair in pairs:
        name, equals, raw = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"--param takes key=value, got {pair!r}")
        try:
            params[name] = loads(raw)
        except ValueError:
            params[name] = raw
    return params
