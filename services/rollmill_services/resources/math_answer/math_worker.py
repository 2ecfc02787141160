"""Worker program that compares two mathematical expressions with math-verify.

Request: `{"expected", "answer", "limit_seconds"}`. Answer: `{"equal": bool, "extracted": text or null}`, where the
text is SymPy's own form of what was read.
"""

import logging

from rollmill.grading.serving import serve


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


def answer(request: dict[str, object]) -> dict[str, object]:
    """Answer one request."""
    return compare(str(request["expected"]), str(request["answer"]))


if __name__ == "__main__":
    logging.disable()
    compare("1", r"\boxed{1}")  # the parser builds its tables on first use
    serve(answer)
