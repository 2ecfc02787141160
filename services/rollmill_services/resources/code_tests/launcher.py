"""Runs inside the sandbox: limits its own process, gives up its rights, then becomes the graded program.

Arguments: a JSON object with the limits, and the path of the program. File descriptor `ready_fd` gets one byte just
before the program starts, so that a sandbox that failed is told apart from a program that failed. There is nothing here
for the program to find out or to break: inputs come on standard input, and outputs are compared outside.

It imports only the standard library, and runs as a script.
"""

import json
import os
import resource
import sys

_MEGABYTE = 1024 * 1024


def limit(limits: dict[str, int]) -> None:
    """Take the limits on; `uid` 0 means that the sandbox has already chosen a user."""
    cpu, memory = limits["cpu_seconds"], limits["memory_mb"] * _MEGABYTE
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_AS, memory, memory),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * _MEGABYTE, limits["file_mb"] * _MEGABYTE),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
    ):
        resource.setrlimit(kind, (soft, hard))
    if limits["uid"]:
        os.setgroups([])
        os.setresgid(limits["uid"], limits["uid"], limits["uid"])
        os.setresuid(limits["uid"], limits["uid"], limits["uid"])


def main(given: str, path: str) -> None:
    """Run the program as `__main__`, with nothing of this module in its way."""
    limits = json.loads(given)
    with open(path, encoding="utf-8") as file:
        source = file.read()
    limit(limits)
    sys.argv = [path]
    os.write(limits["ready_fd"], b"1")
    os.close(limits["ready_fd"])
    program = compile(source, path, "exec")
    exec(program, {"__name__": "__main__", "__builtins__": __builtins__})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
