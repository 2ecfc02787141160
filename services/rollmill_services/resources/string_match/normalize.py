"""Two spellings of one answer made the same, without regard to case."""

import re
import unicodedata

_SUPERSCRIPT = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_VULGAR_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_SAME_MARKS = str.maketrans(
    {**dict.fromkeys("‘’‚‛′ʼ`´", "'"), **dict.fromkeys("“”„‟″«»", '"'), **dict.fromkeys("−‐‑‒–—", "-"), "⁄": "/"}
)
_TRAILING = " \t\n.,;:!?。、…"

_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
_ROOT = re.compile(r"\\sqrt\s*(?:\{([^{}]*)\}|(\d))")
_MATH_FRAME = re.compile(r"\$\$([^$]*)\$\$|(?<!\\)\$([^$]*)(?<!\\)\$|\\[(\[]|\\[)\]]")
_LATEX_WORD = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|bb|cal)|mbox|operatorname|boldsymbol|boxed|displaystyle"
    r"|left|right|big|Big)(?![a-zA-Z])"
)
_LATEX_SPACE = re.compile(r"\\(?:[,;:! ]|(?:quad|qquad)(?![a-zA-Z]))|~")
_LATEX_SYMBOLS = {"times": "×", "cdot": "·", "div": "÷", "pm": "±", "infty": "∞", "degree": "°", "circ": "°", "pi": "π"}
_LATEX_COMMAND = re.compile(r"\\([a-zA-Z]+|[%$#&_{}])")


def plain(text: str) -> str:
    """Return the text in NFKC and lower case, without quotes, trailing punctuation and needless spaces."""
    text = _SUPERSCRIPT.sub(lambda found: "^" + found[0], text)  # else NFKC makes 102 of 10²
    text = unicodedata.normalize("NFKC", _VULGAR_FRACTION.sub(" ", text)).translate(_SAME_MARKS)
    text = " ".join(text.casefold().replace('"', " ").split())
    return _without_outer_quotes(text.rstrip(_TRAILING)).rstrip(_TRAILING).strip()


def without_latex(text: str) -> str:
    r"""Return the text as a reader sees it: `\frac{1}{2}` is `1/2`, `\text{cm}` is `cm`, `$x$` is `x`."""
    text = _MATH_FRAME.sub(lambda found: found[1] or found[2] or "", text)
    text = _LATEX_SPACE.sub(" ", _LATEX_WORD.sub("", text))
    for _ in range(4):  # inner fractions first
        text = _ROOT.sub(lambda found: f"sqrt({found[1] or found[2]})", text)
        text = _FRACTION.sub(_ratio, text)
    text = re.sub(r"\^\s*\{?\s*\\(?:circ|degree)\s*\}?", "°", text)
    text = re.sub(r"(?<!\\)[{}]", "", text)
    return _LATEX_COMMAND.sub(lambda found: _LATEX_SYMBOLS.get(found[1], found[1]), text)


def _ratio(found: re.Match[str]) -> str:
    above, below = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
    return f"{_grouped(above)}/{_grouped(below)}"


def _grouped(term: str) -> str:
    term = term.strip()
    return term if re.fullmatch(r"(?:sqrt)?\([^()]*\)|[\w.]*", term) else f"({term})"


def _without_outer_quotes(text: str) -> str:
    while len(text) > 1 and text[0] == text[-1] == "'":
        text = text[1:-1].strip()
    return text
