"""The loop of a worker program: the other side of `workers`.

A script that ends with `serve(answer)` answers each line of JSON with one line of JSON. Whatever its libraries print
goes to standard error, so that it cannot be taken for an answer.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable

LIMIT = "limit_seconds"
"""Member of every request: how long the service waits for the answer before it kills the process."""
_GRACE_SECONDS = 5
_MEMORY_BYTES = 4 * 1024**3  # of address space: an answer such as 9^{9^{9}} must not take the machine's memory


def serve(answer: Callable[[dict[str, object]], dict[str, object]]) -> None:
    """Answer requests until the input ends, in bounded memory and, should the service be gone, in bounded time."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    replies.write(b'{"ready": true}\n')
    for line in sys.stdin.buffer:
        request = json.loads(line)
        signal.alarm(int(request[LIMIT]) + _GRACE_SECONDS)
        replies.write(json.dumps(answer(request)).encode() + b"\n")
        signal.alarm(0)
