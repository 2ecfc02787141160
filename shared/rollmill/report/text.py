"""A profile as text: what the terminal shows of each agent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rollmill.contracts.json import JsonObject
from rollmill.observability.logging import escape_control
from rollmill.report.headlines import headlines
from rollmill.report.numbers import count, extent

Style: TypeAlias = Literal["plain", "strong", "soft", "bad", "good", "bar"]

_BARS: Final = "▁▂▃▄▅▆▇█"
_NO_BAR: Final = "·"
_ASCII_BARS: Final = "12345678"
_FAILURES: Final = 4
_ON_PAGES_ONLY: Final = frozenset({"effective_batch_share"})


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a line and how it looks, where looks can be had."""

    text: str
    style: Style = "plain"


Line: TypeAlias = tuple[Span, ...]


def describe_agents(agents: Mapping[str, JsonObject], *, ascii_only: bool = False) -> list[Line]:
    """Describe each agent in a few lines.

    Args:
        agents: by name, what `rollmill.metrics.summary.summarize` says of each.
        ascii_only: draw bars with digits.
    """
    blocks = [list(_block(name, summary, ascii_only=ascii_only)) for name, summary in agents.items()]
    gaps: list[Line] = [(Span(""),)]
    return [line for at, block in enumerate(blocks) for line in (gaps if at else []) + block]


def plain(lines: Sequence[Line]) -> str:
    """Join lines without any looks."""
    return "\n".join("".join(span.text for span in line).rstrip() for line in lines)


def bars(counts: Sequence[int], *, ascii_only: bool = False) -> str:
    """Draw counts as bars of one letter each; a dot is none at all, and the highest bar is the largest count."""
    steps, none = (_ASCII_BARS, "-") if ascii_only else (_BARS, _NO_BAR)
    most = max([*counts, 1])
    return "".join(steps[(amount * len(steps) - 1) // most] if amount else none for amount in counts)


def _block(name: str, summary: JsonObject, *, ascii_only: bool) -> Iterator[Line]:
    yield Span(escape_control(name) or "-", "strong"), Span(f"  {extent(summary)}", "soft")
    shown = [
        (headline.label, headline.value, headline.bounds, headline.basis)
        for headline in headlines(summary)
        if headline.name not in _ON_PAGES_ONLY
    ]
    label_width = max([len(label) for label, *_ in shown] + [len("solve rate")])
    value_width = max((len(value) for _, value, *_ in shown), default=0)
    for label, value, bounds, basis in shown:
        notes = "  ".join(part for part in (f"[{', '.join(bounds)}]" if bounds else "", basis) if part)
        yield (
            Span(f"  {escape_control(label):<{label_width}}  "),
            Span(f"{value:>{value_width}}", "strong"),
            Span(f"  {notes}" if notes else "", "soft"),
        )
    if summary.get("rollouts"):
        yield Span(f"  {'solve rate':<{label_width}}  "), *_solve_rate(summary["solve_rate"], ascii_only=ascii_only)
    yield from _failures(summary.get("failures") or {}, label_width)


def _solve_rate(rates: JsonObject, *, ascii_only: bool) -> Iterator[Span]:
    none, some, every = (int(rates[name]) for name in ("none", "some", "all"))
    yield Span(f"{count(none)} none ", "bad")
    yield Span(bars([int(amount) for amount in rates["bins"]], ascii_only=ascii_only), "bar")
    yield Span(f" all {count(every)}", "good")
    yield Span(f"  ({count(some)} between)", "soft")


def _failures(failures: JsonObject, label_width: int) -> Iterator[Line]:
    by_class = sorted(failures.get("by_class", {}).items(), key=lambda one: (-one[1], one[0]))
    if not by_class:
        return
    told = [f"{escape_control(name)} {count(amount)}" for name, amount in by_class[:_FAILURES]]
    more = [f"{len(by_class) - _FAILURES} more"] if len(by_class) > _FAILURES else []
    where = ", ".join(
        f"{escape_control(name)} {count(amount)}" for name, amount in sorted(failures.get("by_boundary", {}).items())
    )
    yield (
        Span(f"  {'failures':<{label_width}}  "),
        Span(", ".join([*told, *more]), "bad"),
        Span(f"  (in {where})" if where else "", "soft"),
    )
