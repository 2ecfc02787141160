"""Worker program that searches a text with a pattern that comes from a task, and may be hostile.

Request: `{"pattern", "text", "limit_seconds"}`. Answer: `{"match": last match or null}` or `{"error": why}`.
It imports only the standard library, and runs as a script (see `workers`).
"""

import json
import re
import signal
import sys
import warnings
from collections.abc import Iterable
from typing import BinaryIO

_GRACE_SECONDS = 5


def last_match(pattern: str, text: str) -> str | None:
    """Return the first group that took part in the last match, or all of the match; None when nothing matches.

    Raises:
        ValueError: the pattern is not a regular expression.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    found: re.Match[str] | None = None
    for match in compiled.finditer(text):
        found = match
    if found is None:
        return None
    groups = [group for group in found.groups() if group is not None]
    return groups[0] if groups else found.group()


def answer(line: bytes) -> bytes:
    """Answer one request line."""
    request = json.loads(line)
    try:
        reply = {"match": last_match(request["pattern"], request["text"])}
    except ValueError as error:
        reply = {"error": str(error)}
    return json.dumps(reply).encode() + b"\n"


def serve(requests: Iterable[bytes], replies: BinaryIO) -> None:
    """Answer requests until the input ends; the service kills the process when one takes too long."""
    replies.write(b'{"ready": true}\n')
    replies.flush()
    for line in requests:
        signal.alarm(int(json.loads(line)["limit_seconds"]) + _GRACE_SECONDS)  # should the service be gone by then
        replies.write(answer(line))
        replies.flush()
        signal.alarm(0)


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
