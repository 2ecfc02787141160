import re
from typing import NamedTuple

_WINDOW = 100_000  # answers stand at the end; the bound keeps a hostile megabyte cheap
_TOKENS = re.compile(r"(?P<box>\\{1,2}boxed\s{0,20}\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


class Box(NamedTuple):
    """Where one `\\boxed{...}` stands."""

    before: str
    """The text between the box in front of it and this one; empty for the first one returned."""
    content: str


class _Span(NamedTuple):
    start: int
    inner: int
    end: int


def last_boxes(text: str) -> list[Box]:
    """Return the last two complete outermost boxes of a text, in order; nested braces are matched.

    Only the last 100,000 characters count. A box whose brace is never closed is no box.
    """
    text = text[-_WINDOW:]
    boxes: list[Box] = []
    previous_end: int | None = None
    for span in _outermost(text)[-2:]:
        before = "" if previous_end is None else text[previous_end : span.start]
        boxes.append(Box(before, text[span.inner : span.end - 1]))
        previous_end = span.end
    return boxes


def last_boxed(text: str) -> str | None:
    """Return the content of the last complete box, or None when there is none."""
    boxes = last_boxes(text)
    return boxes[-1].content if boxes else None


def _outermost(text: str) -> list[_Span]:
    opened: list[tuple[int, int] | None] = []  # start and inner start of a box, None for any other brace
    found: list[_Span] = []
    for token in _TOKENS.finditer(text):
        if token["box"]:
            opened.append(token.span())
        elif token["open"]:
            opened.append(None)
        elif token["close"] and opened and (box := opened.pop()):
            while found and found[-1].start > box[0]:
                found.pop()  # it lies inside this one
            found.append(_Span(box[0], box[1], token.end()))
    return found
