import math
import re
from collections.abc import Iterator

from rollmill.contracts.json import JsonObject, JsonValue

_WHOLE = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,15})(?!\w|[.,]\d)")


def whole_numbers(text: str) -> list[int]:
    """Return the whole numbers of a text in order: `7`, `-3`, `1,000`; not the parts of `2.5` or of `x1`."""
    return [int(number.replace(",", "")) for number in _WHOLE.findall(text)]


def fitting_number(schema: JsonObject, said: Iterator[int], *, whole: bool, nth: int = 0) -> float:
    """Return a number that fits a flat schema: one that was said, else one near the lower bound, or near 0.

    Args:
        schema: its bounds and `multipleOf` are respected.
        said: numbers to prefer; taken from until one fits.
        whole: only integers will do.
        nth: place in a list, so that its members differ.
    """
    chosen = next((number for number in said if _fits(schema, number)), None)
    if chosen is not None:
        return chosen
    candidates = [value for value in _candidates(schema, nth) if not whole or value == int(value)]
    value = next((value for value in candidates if _fits(schema, value)), 0)
    return int(value) if whole else value


def _candidates(schema: JsonObject, nth: int) -> list[float]:
    step = _number(schema, "multipleOf") or 1
    low, high = _edge(schema, "minimum", "exclusiveMinimum"), _edge(schema, "maximum", "exclusiveMaximum")
    start = low if low is not None else min(0, high or 0)
    first = math.ceil(start / step)
    multiples: list[float] = [(first + offset) * step for offset in (nth, nth + 1, 0, 1, -1)]
    return multiples if low is None or high is None else [*multiples, (low + high) / 2]


def _fits(schema: JsonObject, value: float) -> bool:
    low, high = _number(schema, "minimum"), _number(schema, "maximum")
    above, below = _number(schema, "exclusiveMinimum"), _number(schema, "exclusiveMaximum")
    step = _number(schema, "multipleOf")
    return (
        (low is None or value >= low)
        and (high is None or value <= high)
        and (above is None or value > above)
        and (below is None or value < below)
        and (not step or math.isclose(value / step, round(value / step), abs_tol=1e-9))
    )


def _edge(schema: JsonObject, *keywords: str) -> float | None:
    return next((value for value in (_number(schema, keyword) for keyword in keywords) if value is not None), None)


def _number(schema: JsonObject, keyword: str) -> float | None:
    value: JsonValue = schema.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
