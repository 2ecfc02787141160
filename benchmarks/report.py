"""Shared by the benchmarks: the machine, tables and JSON results."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path


def machine() -> dict[str, str | int]:
    """Describe where a measurement was taken."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "cpus": os.cpu_count() or 0,
    }


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in lines)


def write_results(path: Path | None, results: object) -> None:
    """Write the results as JSON, with the machine."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"machine": machine(), "results": results}, indent=2) + "\n")
