"""Units behind an answer. An answer without one is compared as a number; two that have one must agree."""

import re
from dataclasses import dataclass

_LATEX = re.compile(
    r"(?P<value>.{1,200}?)(?:\s|~|\\[,;:! ])*\\(?:text|mathrm|mbox|textrm|operatorname)\s?\{(?P<unit>[^{}]{1,40})\}"
    r"(?:\^\{?(?P<power>[23])\}?)?\s*"
)
_PLAIN = re.compile(
    r"(?P<value>[-+]?[\d.,/ ]{1,60})\s?(?P<unit>[A-Za-z][A-Za-z/ ]{0,39}?)(?:\^\{?(?P<power>[23])\}?)?\s*"
)
_LONGEST = 200
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_SIZES = {
    "length": "mm 1/1000|cm 1/100|dm 1/10|m 1|km 1000|in 127/5000|ft 381/1250|yd 1143/1250|mi 201168/125",
    "mass": "mg 1/1000000|g 1/1000|kg 1|t 1000|lb 45359237/100000000|oz 45359237/1600000000",
    "time": "ms 1/1000|s 1|min 60|h 3600|day 86400|week 604800",
    "length^3": "ml 1/1000000|cl 1/100000|l 1/1000",
    "speed": "m/s 1|km/h 5/18|mph 1397/3125",
    "money": "cent 1/100|dollar 1",
}
_SPELLED = {
    "millimeter": "mm", "centimeter": "cm", "decimeter": "dm", "meter": "m", "kilometer": "km", "inch": "in",
    "foot": "ft", "feet": "ft", "yard": "yd", "mile": "mi", "milligram": "mg", "gram": "g", "kilogram": "kg",
    "ton": "t", "pound": "lb", "ounce": "oz", "millisecond": "ms", "second": "s", "sec": "s", "minute": "min",
    "hour": "h", "hr": "h", "milliliter": "ml", "centiliter": "cl", "liter": "l", "miles per hour": "mph",
    "kilometers per hour": "km/h", "meters per second": "m/s", "inches": "in",
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value, and the unit behind it."""

    value: str
    """The expression in front of the unit."""
    kind: str
    """What it measures, such as `length` or `length^2`."""
    size: str
    """What one of the unit is in the unit of its kind: an expression."""


def quantity(expression: str) -> Quantity | None:
    """Return a value with its unit; None when there is no unit, or one that is not known here."""
    if len(expression) > _LONGEST:
        return None
    match = _LATEX.fullmatch(expression) or _PLAIN.fullmatch(expression)
    if match is None:
        return None
    *powers, name = [part for part in re.split(r"[\s.]+", match["unit"].strip(), maxsplit=1) if part]
    power = _POWERS.get(powers[0].lower()) if powers else 1
    if power is None:
        power, name = 1, f"{powers[0]} {name}"
    known = _known(name)
    if known is None:
        return None
    power *= int(match["power"] or 1)
    kind, size = known
    value = _THOUSANDS.sub("", match["value"].strip())
    return Quantity(value, kind if power == 1 else f"{kind}^{power}", f"({size})^{power}")


def in_one_unit(expected: Quantity, answer: Quantity) -> tuple[str, str] | None:
    """Return two quantities as expressions in the same unit; None when they do not measure the same."""
    if expected.kind != answer.kind:
        return None
    scaled = [rf"\left({each.value}\right)\cdot {each.size}" for each in (expected, answer)]
    return scaled[0], scaled[1]


def _known(name: str) -> tuple[str, str] | None:
    name = name.strip().removesuffix(".")
    spelled = name.lower()
    short = _SPELLED.get(spelled) or _SPELLED.get(spelled.removesuffix("s")) or name
    return _TABLE.get(short) or _TABLE.get(short.lower().removesuffix("s"))


_TABLE = {
    unit: (kind, size) for kind, units in _SIZES.items() for unit, size in (entry.split() for entry in units.split("|"))
}
