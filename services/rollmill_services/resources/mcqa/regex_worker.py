"""Worker program that searches a text with a pattern that comes from a task, and may be hostile.

Request: `{"pattern", "text", "limit_seconds"}`. Answer: `{"match": last match or null}` or `{"error": why}`.
"""

import re
import warnings

from rollmill.contracts.json import JsonObject
from rollmill.grading.serving import serve


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


def answer(request: JsonObject) -> JsonObject:
    """Answer one request."""
    try:
        return {"match": last_match(request["pattern"], request["text"])}
    except ValueError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    serve(answer)
