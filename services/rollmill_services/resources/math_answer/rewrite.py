"""Other ways to write the same, which math-verify does not read: both sides are rewritten, and compared again."""

import re

_SYMBOLS = {
    "−": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "÷": "/",
    "≤": r"\le ",
    "≥": r"\ge ",
    "∞": r"\infty ",
    "π": r"\pi ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∈": r"\in ",
    "∅": r"\emptyset ",
    "°": r"^\circ ",
    "√": r"\sqrt ",
}
_SYMBOL = re.compile("|".join(_SYMBOLS))
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s?\{?(\d{1,20})\}?")
_POWER_OF_TEN = re.compile(r"(?<![\w.])(\d{1,30}(?:\.\d{1,30})?)[eE]([-+]?\d{1,3})(?!\w)")
_RELATION = r"(<=|>=|<|>|\\(?:leqslant|geqslant|leq|geq|le|ge|lt|gt)(?![A-Za-z]))"
_SIDE = r"((?:[^<>=\\]|\\(?:d|t)?frac|\\sqrt|\\pi|\\infty|\\cdot){1,100}?)"
_ONE_SIDED = re.compile(rf"\s*([A-Za-z])\s*{_RELATION}{_SIDE}")
_TWO_SIDED = re.compile(rf"{_SIDE}{_RELATION}\s*([A-Za-z])\s*{_RELATION}{_SIDE}")
_LESS = frozenset({"<", "<=", r"\lt", r"\le", r"\leq", r"\leqslant"})
_OPEN = frozenset({"<", ">", r"\lt", r"\gt"})


def rewritten(expression: str) -> str:
    r"""Return an expression with symbols as LaTeX commands, and with repeating decimals and `3e5` as numbers."""
    text = _SYMBOL.sub(lambda match: _SYMBOLS[match[0]], expression).strip()
    text = re.sub(r"(?<=\w)\.$", "", text)
    text = _REPEATING.sub(_fraction, text)
    return _POWER_OF_TEN.sub(r"\1\\times 10^{\2}", text)


def as_interval(expression: str) -> str | None:
    r"""Return an inequality of one variable as the interval of its solutions: `1<x\le 2` as `(1, 2]`; else None."""
    if one := _ONE_SIDED.fullmatch(expression):
        relation, end = one[2], one[3].strip()
        if relation in _LESS:
            return rf"(-\infty, {end}{_bracket(relation, ')]')}"
        return rf"{_bracket(relation, '([')}{end}, \infty)"
    two = _TWO_SIDED.fullmatch(expression)
    if two is None or (two[2] in _LESS) != (two[4] in _LESS):
        return None
    low, first, last, high = (1, 2, 4, 5) if two[2] in _LESS else (5, 4, 2, 1)
    return f"{_bracket(two[first], '([')}{two[low].strip()}, {two[high].strip()}{_bracket(two[last], ')]')}"


def other_forms(expected: str, answer: str) -> tuple[str, str] | None:
    """Return both sides rewritten, in a form in which they can be compared; None when that changes nothing."""
    pair = rewritten(expected), rewritten(answer)
    intervals = as_interval(pair[0]), as_interval(pair[1])
    if None in intervals:  # two inequalities stay: they may have different variables
        pair = intervals[0] or pair[0], intervals[1] or pair[1]
    return pair if pair != (expected, answer) else None


def _bracket(relation: str, brackets: str) -> str:
    return brackets[0] if relation in _OPEN else brackets[1]


def _fraction(match: re.Match[str]) -> str:
    whole, fixed, repeating = match.groups()
    shown, before = int(f"{whole or 0}{fixed}{repeating}"), int(f"{whole or 0}{fixed}")
    return rf"\frac{{{shown - before}}}{{{'9' * len(repeating)}{'0' * len(fixed)}}}"
