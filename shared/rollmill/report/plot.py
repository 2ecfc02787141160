"""The frame that all charts share: an SVG with axes. Colours come from the style sheet, by class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rollmill.report.markup import Content, Markup, join, tag
from rollmill.report.scales import Scale

WIDTH: Final = 360
HEIGHT: Final = 236
LEFT, RIGHT, TOP, BOTTOM = 58.0, 350.0, 12.0, 190.0
"""The plot area; what is around it is for labels."""
_LETTER: Final = 6.5  # width of a small letter, roughly


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    """Coordinate."""
    label: str


def picture(label: str, *content: Content) -> Markup:
    """Make the SVG.

    Args:
        label: what it shows, for those who do not see it.
        content: its elements.
    """
    return tag(
        "svg",
        *content,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=label,
        class_="chart",
        focusable="false",
    )


def axes(x: Sequence[Tick], y: Sequence[Tick], *, x_label: str, y_label: str) -> Markup:
    """Draw grid lines, ticks and the names of both axes."""
    grid = [tag("line", x1=LEFT, x2=RIGHT, y1=tick.at, y2=tick.at, class_="grid") for tick in y]
    names_y = [tag("text", tick.label, x=LEFT - 6, y=tick.at + 4, class_="tick end") for tick in y]
    names_x = [tag("text", tick.label, x=tick.at, y=BOTTOM + 15, class_=_anchor(tick)) for tick in _apart(x)]
    return join(
        grid,
        tag("line", x1=LEFT, x2=RIGHT, y1=BOTTOM, y2=BOTTOM, class_="axis"),
        names_y,
        names_x,
        tag("text", x_label, x=(LEFT + RIGHT) / 2, y=HEIGHT - 10, class_="name"),
        tag("text", y_label, x=0, y=0, transform=f"translate(11 {(TOP + BOTTOM) / 2:g}) rotate(-90)", class_="name"),
    )


def ticks(scale: Scale, values: Sequence[float], labels: Sequence[str]) -> list[Tick]:
    """Place labels along a scale."""
    return [Tick(scale(value), label) for value, label in zip(values, labels, strict=True)]


def tooltip(element: str, words: str, **attributes: str | float) -> Markup:
    """Make an SVG element that tells something when pointed at."""
    return tag(element, tag("title", words), **attributes)


def _anchor(tick: Tick) -> str:
    """Keep the label of a tick at the right end inside the picture."""
    half = len(tick.label) * _LETTER / 2
    return "tick end" if tick.at + half > WIDTH else "tick"


def _apart(found: Sequence[Tick]) -> list[Tick]:
    """Leave out labels that would touch the one before."""
    kept: list[Tick] = []
    for tick in sorted(found, key=lambda one: one.at):
        room = _LETTER * (len(tick.label) + len(kept[-1].label)) / 2 + 4 if kept else 0.0
        if not kept or tick.at - kept[-1].at >= room:
            kept.append(tick)
    return kept
