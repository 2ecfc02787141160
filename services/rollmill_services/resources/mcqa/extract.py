import re
from collections.abc import Callable
from typing import TypeAlias

from rollmill.grading.boxed import Box, last_boxes
from rollmill_services.resources.mcqa.choices import Options, lenient_choice, strict_choice

Extractor: TypeAlias = Callable[[str, Options], str | None]

_WINDOW = 100_000
_ANSWER_COLON = re.compile(r"\banswer\s{0,3}[:：]\s{0,10}([^\n]{0,2000})", re.IGNORECASE)
_EMPHASIS = re.compile(r"\*+|__+|`+")
_MATH_MARKS = re.compile(r"[\s$\\()\[\]{}]+|text")
_CONNECTORS = frozenset({"or", "and", "/", ",", "|", "&", ",or", ",and", "and/or"})
_LONGEST_CONNECTOR = 60


def boxed_choice(text: str, options: Options) -> str | None:
    """Return the letter alone in the last box, or None."""
    return _from_boxes(text, options, strict_choice)


def lenient_boxed_choice(text: str, options: Options) -> str | None:
    """Return the letter of the option that the last box names by letter or text, or None."""
    return _from_boxes(text, options, lenient_choice)


def answer_colon_choice(text: str, options: Options) -> str | None:
    """Return the letter of the option that follows the last `Answer:`, or None."""
    found: re.Match[str] | None = None
    for match in _ANSWER_COLON.finditer(text[-_WINDOW:]):
        found = match
    return lenient_choice(found[1], options) if found else None


def answer_colon_markdown_choice(text: str, options: Options) -> str | None:
    """Do as `answer_colon_choice` does, after removing Markdown emphasis: `**Answer**: *B*`."""
    return answer_colon_choice(_EMPHASIS.sub("", text[-_WINDOW:]), options)


EXTRACTORS: dict[str, Extractor] = {
    "strict_single_letter_boxed": boxed_choice,
    "lenient_boxed": lenient_boxed_choice,
    "lenient_answer_colon": answer_colon_choice,
    "lenient_answer_colon_md": answer_colon_markdown_choice,
}


def _from_boxes(text: str, options: Options, choose: Extractor) -> str | None:
    boxes = last_boxes(text)
    if not boxes:
        return None
    letters = [choose(box.content, options) for box in boxes]
    offered_two = len(boxes) > 1 and letters[0] != letters[1] and None not in letters and _joined(boxes[-1])
    return None if offered_two else letters[-1]


def _joined(box: Box) -> bool:
    r"""Say whether the box only continues the one in front of it, as in `\boxed{A} or \boxed{B}`."""
    return len(box.before) <= _LONGEST_CONNECTOR and _MATH_MARKS.sub("", box.before).lower() in _CONNECTORS
