"""The program of an answer, and whether what it printed is what was expected."""

import re
from decimal import Decimal, InvalidOperation

LONGEST_PROGRAM = 256 * 1024
"""Characters; a longer program is not run."""
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n(?P<code>.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)
_PYTHON = frozenset({"", "python", "python3", "py"})
_LONGEST_NUMBER = 400


def last_program(text: str) -> str | None:
    """Return the last fenced block that is, or may be, Python; None when there is none, or it is too long."""
    found = [match["code"] for match in _FENCE.finditer(text) if match["language"].lower() in _PYTHON]
    return found[-1] if found and len(found[-1]) <= LONGEST_PROGRAM else None


def same_output(printed: str, expected: str) -> bool:
    """Compare line by line: white space at the ends does not count, nor how a number is written.

    Empty lines at the very beginning and end do not count; one in the middle does.
    """
    mine, theirs = printed.strip().split("\n"), expected.strip().split("\n")
    return len(mine) == len(theirs) and all(map(_same_line, mine, theirs))


def _same_line(mine: str, theirs: str) -> bool:
    mine, theirs = mine.strip(), theirs.strip()
    if mine == theirs:
        return True
    words, others = mine.split(), theirs.split()
    return len(words) == len(others) and all(map(_same_word, words, others))


def _same_word(mine: str, theirs: str) -> bool:
    if mine == theirs:
        return True
    if max(len(mine), len(theirs)) > _LONGEST_NUMBER:
        return False
    try:
        one, other = Decimal(mine), Decimal(theirs)
    except InvalidOperation:
        return False
    return one == other if one.is_finite() and other.is_finite() else False
