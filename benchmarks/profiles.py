"""How fast is a profile, from JSONL and from the column file, and how fast is a live query?

Run:  python benchmarks/profiles.py [--tasks 20000] [--repeats 8] [--large] [--json out.json]
      python benchmarks/profiles.py --live 1000000

The data is made first: rollouts of 4 KB with a reasoning item, a tool call and an answer, 11 numeric fields, and their
input rows. Each number is taken in a fresh process. "read" and "statistics" leave out what it takes to start Python and
import the libraries, which a service does once; "process" is everything from the start to the end of the process. CPU
and memory are those of the process and of those that it starts, together; memory is sampled every 20 ms.

The reference computes the same statistics per task with a plain `groupby.apply` in pandas, on the columns in memory.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path

import psutil

from profile_data import begin_run, lines, make_run
from report import machine, table, write_results

SECONDS, MEGABYTES = "{:.2f} s", "{:.0f} MB"
SAMPLE_SECONDS = 0.02
LARGE_TASKS = 200_000
NEW_ROLLOUTS = 1000
REFERENCE_TASKS = 2000
NEEDED_BYTES_PER_ROLLOUT = 5500
LIVE_REPEATS, BATCH = 8, 1000
RSS_UNIT = 1e-6 if sys.platform == "darwin" else 1024e-6  # of `ru_maxrss`, in megabytes


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


def measure_append(rollouts: Path) -> dict[str, float]:
    """Append input rows and rollouts, as a collector does, until there are as many as the manifest expects."""
    from rollmill.artifacts.files import RunFiles
    from rollmill.artifacts.manifest import read_manifest

    files = RunFiles(rollouts)
    manifest = read_manifest(files.manifest)
    made = lines(manifest.counts.expected // LIVE_REPEATS if manifest else 0, LIVE_REPEATS)
    began = time.perf_counter()
    with rollouts.open("ab") as outcomes, files.inputs.open("ab") as inputs:
        while batch := list(islice(made, BATCH)):
            inputs.writelines(row for _, row in batch)
            inputs.flush()
            outcomes.writelines(line for line, _ in batch)
            outcomes.flush()
    return {"seconds": time.perf_counter() - began}


def measure_following(rollouts: Path) -> dict[str, float]:
    """Ask the profiler again and again while another process appends to the run, and then at its full size."""
    from rollmill.artifacts.run_store import RunStore
    from rollmill.contracts.json import dumps
    from rollmill_services.profiler.profiler import Profiler
    from rollmill_services.profiler.rendering import render
    from rollmill_services.profiler.requests import RunView

    profiler = Profiler(RunStore(rollouts.parent), max_rows=1)
    asked: list[tuple[float, int]] = []  # seconds and rollouts of each query
    worked: list[float] = []  # CPU of each

    def ask() -> int:
        began, busy = time.perf_counter(), time.process_time()
        body = profiler.live("x")
        dumps(body)
        asked.append((time.perf_counter() - began, body["rollouts"]))
        worked.append(time.process_time() - busy)
        return int(body["rollouts"])

    ask()  # there is nothing yet; libraries are imported here
    asked.clear()
    arguments = [__file__, "--measure", "append", "--rollouts", str(rollouts)]
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL) as writer:
        while writer.poll() is None:
            ask()
    total = ask()
    while_collecting = asked[:]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT
    summary = timed(lambda: render(profiler.of_run("x", allow_partial=True), RunView(level="summary")))
    asked.clear()
    for attempt in range(5):
        new = [line for line, _ in lines(NEW_ROLLOUTS // LIVE_REPEATS, LIVE_REPEATS, total + attempt * NEW_ROLLOUTS)]
        with rollouts.open("ab") as file:
            file.writelines(new)
        ask()
    pairs = pairwise([(0.0, 0), *while_collecting])
    telling = [(seconds, after - before) for (_, before), (seconds, after) in pairs if after > before]
    times, steps = sorted(seconds for seconds, _ in telling), sorted(new for _, new in telling)
    return {
        "rollouts": total,
        "queries": len(times),
        "new": steps[len(steps) // 2],
        "median": times[len(times) // 2],
        "p99": times[len(times) * 99 // 100],
        "most": times[-1],
        "query": sorted(seconds for seconds, _ in asked)[2],
        "query CPU": sorted(worked[-5:])[2],
        "live memory": memory,
        "summary": summary,
    }


MEASURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "statistics": measure_statistics,
    "classic": measure_classic,
    "estimates": measure_estimates,
    "live": measure_live,
    "append": measure_append,
    "following": measure_following,
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
    # Libraries are compiled once, not each time they are imported: that is how they are found after installation.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = psutil.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
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


def follow(expected: int) -> tuple[dict[str, float], str]:
    """Profile a run of that many rollouts while it is being collected; return the numbers and how to tell them."""
    from rollmill.artifacts.files import RunFiles

    with tempfile.TemporaryDirectory(prefix="rollmill-benchmark-") as folder:
        files = RunFiles.at(Path(folder) / "x.jsonl")
        begin_run(files, expected)
        files.rollouts.touch()
        found = run("following", files.rollouts)
    times = {name: f"{found[name] * 1e3:.0f} ms" for name in ("median", "p99", "most", "query", "query CPU")}
    told = (
        f"While {found['rollouts']:,} rollouts were appended: {found['queries']:,} live queries found something new, "
        f"half of them {found['new']:,} rollouts or more; median {times['median']}, p99 {times['p99']}, longest "
        f"{times['most']}; {found['live memory']:.0f} MB. At the end, one after {NEW_ROLLOUTS:,} new rollouts "
        f"{times['query']} ({times['query CPU']} of CPU), the first summary with intervals {found['summary']:.2f} s."
    )
    return found, told


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
    parser.add_argument("--live", type=int, metavar="N", help="only: profile a run of N rollouts while it is written")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--rollouts", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(MEASURES[arguments.measure](arguments.rollouts)))
        return
    if arguments.live:
        found, told = follow(arguments.live)
        print(f"{told}\n\n{machine()}")
        write_results(arguments.json, {"following": found})
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
