"""`rollmill compare`: is run B better than run A, and how sure is that?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from rollmill.cli.console import emit, emit_json, table, tell
from rollmill.contracts.json import JsonObject, JsonValue

_SURE: Final = 0.05
_HEADER: Final = ("", "A", "B")
_MOVED_HEADER: Final = ("task", "A", "B", "B - A")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Rollouts of a run, a.jsonl.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Rollouts of the run to set beside it, b.jsonl.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole comparison as JSON.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Compare although dataset or verifier differ.")] = False,
) -> None:
    """Compare two runs over the tasks that both have: differences with intervals, wins and losses, what moved most."""
    from rollmill.artifacts.files import RunFiles
    from rollmill.comparison import compare_files
    from rollmill.errors import ConflictError

    try:
        found = compare_files(RunFiles.at(a), RunFiles.at(b), force=force)
    except ConflictError as error:
        raise ConflictError(f"{error.detail}; --force compares them anyway", **error.extensions) from None
    for difference in found["forced"]:
        tell(f"warning: compared although they differ in {difference}")
    for note in found["notes"]:
        tell(f"note: they differ in {note}")
    for run in ("a", "b"):
        if found[f"only_{run}"]:
            tell(f"only in {run.upper()}: {', '.join(found[f'only_{run}'])}")
    if as_json:
        emit_json(found)
    else:
        emit("\n\n".join(describe(agent, result) for agent, result in found["agents"].items()))


def describe(agent: str, result: JsonObject) -> str:
    """Lay out one agent's comparison as text: headline numbers, the verdict in words, the tasks that moved most."""
    tasks = result["tasks"]
    lines = [
        f"{agent or '-'}: {tasks['both']} tasks in both runs, {tasks['only_a']} only in A, {tasks['only_b']} only in B",
        table(_HEADER, [*_rows(result)]),
        verdict(result),
    ]
    if moved := [task for task in result["moved_most"] if task["difference"]]:
        lines.append("moved most:")
        lines.append(table(_MOVED_HEADER, [_moved(task) for task in moved]))
    return "\n".join(lines)


def verdict(result: JsonObject) -> str:
    """Say in words what the difference of means says."""
    difference, p = result["difference"], result.get("p_value")
    value, low, high = (difference.get(name) for name in ("value", "low", "high"))
    if value is None:
        return "nothing can be said: no task is in both runs"
    told = f"B - A = {_signed(value)}{_interval(difference, signed=True)}" + ("" if p is None else f", p = {p:.3g}")
    if low is None or high is None:
        return f"{told}: too few tasks to tell chance from a difference"
    if low > 0 or high < 0:
        sure = "" if p is None or p < _SURE else ", though barely"
        return f"{told}: B is {'better' if low > 0 else 'worse'}{sure}"
    return f"{told}: no difference is shown, the interval holds 0"


def _rows(result: JsonObject) -> Iterator[tuple[str, str, str]]:
    a, b = (_number(result[name]) + _interval(result[name]) for name in ("mean_a", "mean_b"))
    yield "mean", a, b
    wins = result["wins"]
    yield f"tasks won ({wins['ties']} ties)", str(wins["a"]), str(wins["b"])
    if solved := result.get("mcnemar"):
        p = solved.get("p_value")
        told = "" if p is None else f" (McNemar p = {p:.3g})"
        yield f"solved by one only{told}", str(solved["only_a_solved"]), str(solved["only_b_solved"])


def _moved(task: JsonObject) -> tuple[str, str, str, str]:
    return str(task["task"]), f"{task['mean_a']:.4g}", f"{task['mean_b']:.4g}", _signed(task["difference"])


def _number(estimate: JsonObject) -> str:
    value = estimate.get("value")
    return "-" if value is None else f"{value:.4f}"


def _interval(estimate: JsonObject, *, signed: bool = False) -> str:
    low, high = estimate.get("low"), estimate.get("high")
    if low is None or high is None:
        return ""
    return f" [{_signed(low)}, {_signed(high)}]" if signed else f" [{low:.4f}, {high:.4f}]"


def _signed(value: JsonValue) -> str:
    return f"{value:+.4f}"
