"""Worker program that compares two mathematical expressions with math-verify.

Request: `{"expected", "answer", "limit_seconds"}`. Answer: `{"equal": bool, "extracted": text or null}`, where the
text is SymPy's own form of what was read. It runs as a script, and imports nothing of Rollmill (see `workers`).
"""

import json
import logging
import resource
import signal
import sys
from collections.abc import Iterable
from typing import BinaryIO

_GRACE_SECONDS = 5
_MEMORY_BYTES = 4 * 1024**3  # of address space: an answer such as 9^{9^{9}} must not take the machine's memory


def compare(expected: str, answer: str) -> dict[str, object]:
    """Say whether the answer is equivalent to the expected expression."""
    try:
        return _compare(expected, answer)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
        return {"equal": False, "extracted": None}


def _compare(expected: str, answer: str) -> dict[str, object]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify  # slow, and an extra

    # The time limits of math-verify are off: the process itself is the limit, and holds for all of the work.
    found = parse(answer, (ExprExtractionConfig(), LatexExtractionConfig()), parsing_timeout=None)
    if not found:
        return {"equal": False, "extracted": None}
    gold = parse(rf"\boxed{{{expected}}}", (LatexExtractionConfig(),), parsing_timeout=None)
    return {"equal": verify(gold, found, timeout_seconds=None), "extracted": _readable(found)}


def _readable(found: list[object]) -> str:
    try:
        return str(found[0])
    except ValueError:  # an integer of more digits than Python prints
        return str(found[-1])


def answer(line: bytes) -> bytes:
    """Answer one request line."""
    request = json.loads(line)
    return json.dumps(compare(request["expected"], request["answer"])).encode() + b"\n"


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
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    compare("1", r"\boxed{1}")  # the parser builds its tables on first use
    serve(sys.stdin.buffer, sys.stdout.buffer)
