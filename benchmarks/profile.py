"""How fast is a profile, from JSONL and from the column file, and how fast is a live query?

Run:  python benchmarks/profile.py [--tasks 20000] [--repeats 8] [--large] [--json out.json]

The data is made first: rollouts of 4 KB with a reasoning item, a tool call and an answer, 11 numeric fields, and their
input rows. Each number is taken in a fresh process. "read" and "statistics" leave out what it takes to start Python and
import the libraries, which a service does once; "process" is everything from the start to the end of the process. CPU
and memory are those of the process and of those that it starts, together; memory is sampled every 20 ms.

The reference computes the same statistics per task with a plain `groupby.apply` in pandas, on the columns in memory.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from report import machine, table, write_results

SECONDS, MEGABYTES = "{:.2f} s", "{:.0f} MB"
SAMPLE_SECONDS = 0.02
LARGE_TASKS = 200_000
NEW_ROLLOUTS = 1000
REFERENCE_TASKS = 2000
NEEDED_BYTES_PER_ROLLOUT = 5500


# --- data -----------------------------------------------------------------------------------------------------------


def make_run(folder: Path, tasks: int, repeats: int) -> Path:
    """Write a run's rollouts, input rows and manifest; return the path of the rollouts."""
    from rollmill.artifacts.files import RunFiles
    from rollmill.artifacts.manifest import Counts, Digests, Manifest
    from rollmill.contracts.runs import AgentProgress

    files = RunFiles.at(folder / "x.jsonl")
    total = tasks * repeats
    with files.rollouts.open("wb") as rollouts, files.inputs.open("wb") as inputs:
        for line, row in lines(tasks, repeats):
            rollouts.write(line)
            inputs.write(row)
    Manifest(
        run_id="x",
        state="running",
        counts=Counts(expected=total, completed=total),
        agents={"weather_agent": AgentProgress(expected=total, completed=total)},
        digests=Digests(input="", overrides=""),
    ).write(files.manifest)
    return files.rollouts


def lines(tasks: int, repeats: int, first_task: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Yield lines of rollouts and of their input rows."""
    from rollmill.contracts.json import dumps

    rng = random.Random(first_task)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2000)]
    texts = [" ".join(rng.choices(words, k=150)) for _ in range(300)]
    for task in range(first_task, first_task + tasks):
        difficulty = rng.random()
        for index in range(repeats):
            row = input_row(task, index, texts[task % len(texts)])
            yield dumps(row | outcome(rng, texts, right=rng.random() > difficulty)) + b"\n", dumps(row) + b"\n"


def input_row(task: int, index: int, question: str) -> dict[str, object]:
    """Make one materialized row."""
    tool = {"type": "function", "name": "get_weather", "strict": True, "parameters": {"type": "object"}}
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": index,
        "agent_ref": {"type": "responses_api_agents", "name": "weather_agent"},
        "responses_create_params": {"input": [{"role": "user", "content": question[:600]}], "tools": [tool]},
        "expected_answer": "A",
    }


def outcome(rng: random.Random, texts: list[str], *, right: bool) -> dict[str, object]:
    """Make what a rollout adds to its row."""
    written = rng.randint(20, 4000)
    said = {"type": "output_text", "text": rng.choice(texts), "annotations": []}
    output: list[dict[str, object]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": rng.choice(texts)}]},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"temperature": 21, "unit": "C"}'},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]},
    ]
    usage = {
        "input_tokens": 700,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 10},
        "total_tokens": 700 + written,
    }
    return {
        "response": {"id": "r", "model": "m", "output": output, "incomplete_details": None, "usage": usage},
        "reward": float(right),
        "extracted_answer": "A" if right else rng.choice("BCD"),
        "accuracy": right,
        "format_ok": True,
        "library_reward": float(right),
        "num_tool_calls": 1,
        "latency_ms": rng.random() * 1000,
        "reward_components": {"answer": float(right), "format": 0.5},
        "_rollmill": {"seconds": rng.random() * 9, "started_at": 1754000000.25, "attempt": 0},
    }


# --- what is measured, each in a process of its own -----------------------------------------------------------------


def timed(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_statistics(rollouts: Path) -> dict[str, float]:
    """Read the columns of a run and compute the statistics of every field per task and per agent."""
    import pandas  # noqa: F401  imported here, so that it is not measured
    import pyarrow.parquet  # noqa: F401

    from rollmill.artifacts.columns import read_columns
    from rollmill.artifacts.files import RunFiles
    from rollmill.metrics.describe import describe
    from rollmill.metrics.groups import Groups

    began = time.perf_counter()
    columns = read_columns(RunFiles(rollouts))
    read = time.perf_counter()
    frame = Groups(columns.table()).frame
    tasks = describe(frame[columns.fields], frame["_ng_task_index"])
    describe(frame[columns.fields], frame["agent_ref"])
    done = time.perf_counter()
    return {"read": read - began, "statistics": done - read, "rollouts": len(columns), "tasks": len(tasks)}


def measure_classic(rollouts: Path) -> dict[str, float]:
    """Read input rows too, join them, and make the classic profile, but for its JSON."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from rollmill.artifacts.files import RunFiles
    from rollmill.profiling import Profile, read_tables

    began = time.perf_counter()
    tables = read_tables(RunFiles(rollouts).inputs, rollouts)
    read = time.perf_counter()
    result = Profile(tables, allow_partial=True)
    _ = result.reward_profile.agents, result.completion
    return {"read": read - began, "statistics": time.perf_counter() - read}


def measure_estimates(rollouts: Path) -> dict[str, float]:
    """Read the columns and compute every estimate with its interval."""
    import pandas  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from rollmill.artifacts.columns import read_columns
    from rollmill.artifacts.files import RunFiles
    from rollmill.metrics.summary import summarize

    began = time.perf_counter()
    frame = read_columns(RunFiles(rollouts)).frame
    read = time.perf_counter()
    summarize(frame)
    return {"read": read - began, "statistics": time.perf_counter() - read}


def measure_live(rollouts: Path) -> dict[str, float]:
    """Follow a run: the first query, and queries after further rollouts were appended."""
    from rollmill.artifacts.files import RunFiles
    from rollmill.artifacts.live import LiveProfile

    live = LiveProfile(RunFiles(rollouts))
    first = timed(lambda: (live.refresh(), live.summary()))
    size = rollouts.stat().st_size
    queries = []
    try:
        for attempt in range(5):
            new = [line for line, _ in lines(NEW_ROLLOUTS // 8, 8, 10_000_000 + attempt * NEW_ROLLOUTS)]
            with rollouts.open("ab") as file:
                file.writelines(new)
            queries.append(timed(lambda: (live.refresh(), live.summary())))
        nothing = timed(lambda: (live.refresh(), live.summary()))
    finally:
        os.truncate(rollouts, size)
    return {"first": first, "query": sorted(queries)[2], "nothing new": nothing}


def measure_writing(rollouts: Path) -> dict[str, float]:
    """Write the column file from scratch, on one core as the collector does it."""
    from rollmill.artifacts.columns import update_column_file
    from rollmill.artifacts.files import RunFiles

    files = RunFiles(rollouts)
    files.metrics_parquet.unlink(missing_ok=True)
    seconds = timed(lambda: update_column_file(files, processes=1))
    return {"read": seconds, "size": files.metrics_parquet.stat().st_size}


def measure_reference(rollouts: Path) -> dict[str, float]:
    """Compute the statistics per task in the straightforward way: a Python function for each group."""
    import pandas as pd

    from rollmill.artifacts.columns import read_columns
    from rollmill.artifacts.files import RunFiles

    columns = read_columns(RunFiles(rollouts))
    frame = columns.frame[["_ng_task_index", *columns.fields]]

    def statistics(group: "pd.DataFrame") -> "pd.Series[float]":
        numbers = {}
        for name in columns.fields:
            values = group[name]
            for statistic in ("mean", "max", "min", "median", "std"):
                numbers[f"{statistic}/{name}"] = float(getattr(values, statistic)())
        return pd.Series(numbers)

    tasks = frame[frame["_ng_task_index"] < REFERENCE_TASKS]
    seconds = timed(lambda: tasks.groupby("_ng_task_index").apply(statistics))
    return {"statistics": seconds * frame["_ng_task_index"].nunique() / tasks["_ng_task_index"].nunique()}


MEASURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "statistics": measure_statistics,
    "classic": measure_classic,
    "estimates": measure_estimates,
    "live": measure_live,
    "writing": measure_writing,
    "reference": measure_reference,
}


# --- the tables -----------------------------------------------------------------------------------------------------


def run(name: str, rollouts: Path) -> dict[str, float]:
    """Measure one thing in a fresh process."""
    output, used = observed([__file__, "--measure", name, "--rollouts", str(rollouts)])
    found: dict[str, float] = json.loads(output)
    return found | used


def command(rollouts: Path) -> dict[str, float]:
    """Measure the command as a user runs it, with the files that it writes."""
    return observed(["-m", "rollmill", "profile", "--rollouts", str(rollouts), "--allow-partial"])[1]


def observed(arguments: list[str]) -> tuple[str, dict[str, float]]:
    """Run a Python program; return what it prints, and its time, CPU and memory with those of its children."""
    before, began = os.times(), time.perf_counter()
    process = psutil.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    most, output, errors = 0, None, ""
    while output is None:
        with suppress(psutil.Error):
            family = [process, *process.children(recursive=True)]
            most = max(most, sum(member.memory_info().rss for member in family))
        with suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(errors)
    seconds, after = time.perf_counter() - began, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return output, {"process": seconds, "cpu": cpu, "memory": most / 1e6}


def measure_size(tasks: int, repeats: int, *, reference: bool) -> dict[str, dict[str, float]]:
    """Make a run of one size and measure everything on it."""
    with tempfile.TemporaryDirectory(prefix="rollmill-benchmark-") as folder:
        rollouts = make_run(Path(folder), tasks, repeats)
        size = rollouts.stat().st_size
        results: dict[str, dict[str, float]] = {"data": {"rollouts": tasks * repeats, "bytes": size}}
        results["JSONL: statistics"] = run("statistics", rollouts)
        results["JSONL: classic profile, joined with input rows"] = run("classic", rollouts)
        results["JSONL: `rollmill profile`, files written"] = command(rollouts)
        results["writing the column file, one core"] = run("writing", rollouts)
        results["Parquet: statistics"] = run("statistics", rollouts)
        results["Parquet: classic profile, joined with input rows"] = run("classic", rollouts)
        results["Parquet: estimates with intervals"] = run("estimates", rollouts)
        results["Parquet: `rollmill profile`, files written"] = command(rollouts)
        results["live"] = run("live", rollouts)
        if reference:
            results["reference: `groupby.apply`, statistics alone"] = run("reference", rollouts)
    return results


def show(results: dict[str, dict[str, float]]) -> str:
    """Render the results of one size."""
    data, live = results["data"], results["live"]
    rows = [
        [name, *(_cell(found, key) for key in ("read", "statistics", "process", "cpu", "memory"))]
        for name, found in results.items()
        if name not in ("data", "live")
    ]
    own = results["Parquet: statistics"]["statistics"]
    reference = results.get("reference: `groupby.apply`, statistics alone")
    lines = [
        f"{data['rollouts']:,} rollouts, {data['bytes'] / 1e6:.0f} MB of JSONL, "
        f"{results['writing the column file, one core']['size'] / 1e6:.1f} MB of Parquet",
        "",
        table(["", "read", "statistics", "process", "CPU", "memory"], rows),
        "",
        f"Live: the first query {live['first']:.2f} s, one after {NEW_ROLLOUTS:,} new rollouts "
        f"{live['query'] * 1e3:.0f} ms, one after none {live['nothing new'] * 1e3:.1f} ms.",
    ]
    if reference:
        lines.append(f"The reference takes {reference['statistics'] / own:,.0f} times as long for the statistics.")
    return "\n".join(lines)


def _cell(found: dict[str, float], key: str) -> str:
    if key not in found:
        return ""
    return (MEGABYTES if key == "memory" else SECONDS).format(found[key])


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--large", action="store_true", help=f"also measure {LARGE_TASKS:,} tasks, if there is room")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(MEASURES[arguments.measure](arguments.rollouts)))
        return
    sizes = [arguments.tasks]
    room = shutil.disk_usage(tempfile.gettempdir()).free
    if arguments.large and room > LARGE_TASKS * arguments.repeats * NEEDED_BYTES_PER_ROLLOUT:
        sizes.append(LARGE_TASKS)
    results: dict[str, dict[str, dict[str, float]]] = {}
    for tasks in sizes:
        results[str(tasks)] = measure_size(tasks, arguments.repeats, reference=tasks == arguments.tasks)
        print(f"\n{show(results[str(tasks)])}")
    print(f"\n{machine()}")
    write_results(arguments.json, results)


if __name__ == "__main__":
    main()
