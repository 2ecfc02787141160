import re

from rollmill_services.resources.string_match.normalize import plain, without_latex
from rollmill_services.resources.string_match.numbers import close, read_number, read_quantity
from rollmill_services.resources.string_match.states import full_name

CLOSE_REWARD = 0.98
"""Reward of a number that is close to the expected one, but not equal."""
_LONGEST = 2_000  # characters; a longer answer is compared as text only
_SEPARATOR = re.compile(r"\s*[,;&]\s*(?:and\s)?\s*|\s+and\s+")
_ORDERED = ("(", "[", "<")


def exact_score(answer: str, expected: str) -> float:
    """Return 1.0 when both are the same after trimming, else 0.0."""
    return float(answer.strip() == expected.strip())


def lenient_score(answer: str, expected: str) -> float:
    """Return 1.0 for the same answer in another spelling, 0.98 for a close number, else 0.0."""
    if not plain(expected):
        return exact_score(answer, expected)  # nothing but punctuation, which then matters
    if plain(answer) == plain(expected):
        return 1.0
    if max(len(answer), len(expected)) > _LONGEST:
        return 0.0
    said, wanted = plain(without_latex(answer)), plain(without_latex(expected))
    if not said or not wanted:
        return 0.0  # LaTeX of no visible content
    if said == wanted or full_name(said) == full_name(wanted):
        return 1.0
    numeric = _numeric_score(said, wanted)
    return float(_same_list(said, wanted)) if numeric is None else numeric


def _numeric_score(said: str, wanted: str) -> float | None:
    given, expected = read_quantity(said), read_quantity(wanted)
    if given is None or expected is None:
        return None
    if given.unit and expected.unit and given.unit != expected.unit:
        return 0.0
    if given.value == expected.value:
        return 1.0
    return CLOSE_REWARD if close(given.value, expected.value) else 0.0


def _same_list(said: str, wanted: str) -> bool:
    if read_number(said) is not None or read_number(wanted) is not None:
        return False  # the comma of 1,234 is no separator
    given, expected = _elements(said), _elements(wanted)
    return len(expected) > 1 and sorted(given) == sorted(expected)


def _elements(text: str) -> list[str]:
    if text.startswith(_ORDERED):
        return [text]  # a pair, an interval or a sequence has an order
    inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    return [_canonical(element) for element in _SEPARATOR.split(inner.strip()) if element]


def _canonical(element: str) -> str:
    number = read_number(element)
    return full_name(plain(element)) if number is None else str(number)
