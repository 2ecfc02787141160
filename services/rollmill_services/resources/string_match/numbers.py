import re
from fractions import Fraction
from typing import NamedTuple

from rollmill_services.resources.string_match.units import canonical_unit

_LONGEST = 120  # characters; and exponents of at most three digits, so that no number is expensive
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ _']\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_POWER = r"\s?[x×*·]\s?10\s?\^\s?\(?(?P<power>[+-]?\d{1,3})\)?"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)\s?(?:(?P<whole>\d+)\s(?P<top>\d+)\s?/\s?(?P<bottom>\d+)"
    rf"|(?P<over>{_DECIMAL})\s?/\s?(?P<under>{_DECIMAL})"
    rf"|(?P<decimal>{_DECIMAL})(?:e(?P<exponent>[+-]?\d{{1,3}})(?!\d)|{_POWER})?)(?![\d.])"
)
_CURRENCY = re.compile(r"(?P<sign>[+-]?)\s?(?:us|a|c)?(?P<unit>[$€£¥₹])\s?(?P<rest>.*)")
_CLOSE = Fraction(1, 1000)


class Quantity(NamedTuple):
    """A number and the unit written with it, if any."""

    value: Fraction
    unit: str


def read_number(text: str) -> Fraction | None:
    """Read `1,234.5`, `1/2`, `2 1/2`, `1.5e3` or `1.5 × 10^3`; None when the text is anything else."""
    found = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    return _value(found) if found else None


def read_quantity(text: str) -> Quantity | None:
    """Read a number with or without a known unit, as `80 km/h`, `$20` or `25%`; None for anything else."""
    if len(text) > _LONGEST:
        return None
    if money := _CURRENCY.fullmatch(text):
        value = read_number(money["sign"] + money["rest"])
        return None if value is None else Quantity(value, canonical_unit(money["unit"]) or "")
    found = _NUMBER.match(text)
    value = _value(found) if found else None
    unit = canonical_unit(text[found.end() :]) if found else None
    return None if value is None or unit is None else Quantity(value, unit)


def close(value: Fraction, expected: Fraction) -> bool:
    """Say whether two numbers differ by at most 0.1 % of the expected one; whole numbers are never close."""
    if value.denominator == 1 and expected.denominator == 1:
        return False  # 1945 is not nearly 1946
    return abs(value - expected) <= abs(expected) * _CLOSE


def _value(found: re.Match[str]) -> Fraction | None:
    try:
        value = _magnitude(found)
    except ZeroDivisionError:
        return None
    return -value if found["sign"] == "-" else value


def _magnitude(found: re.Match[str]) -> Fraction:
    if found["whole"]:
        return Fraction(found["whole"]) + Fraction(int(found["top"]), int(found["bottom"]))
    if found["over"]:
        return _decimal(found["over"]) / _decimal(found["under"])
    power = found["exponent"] or found["power"] or "0"
    return _decimal(found["decimal"]) * Fraction(10) ** int(power)


def _decimal(digits: str) -> Fraction:
    return Fraction(re.sub(r"[,_' ]", "", digits).rstrip("."))
