r"""Which option a short answer names.

`B`, `(B)`, `[B]` and `\text{B}` name a letter. A lenient reading also takes `b`, `B: its text`, `option B`, and the
text of exactly one option. Two letters offered as alternatives, as in `A or B`, name none.
"""

import re
from collections.abc import Mapping
from typing import TypeAlias

Options: TypeAlias = Mapping[str, str]
"""Text of each option by its capital letter."""

_WRAPPER = re.compile(
    r"\\{1,2}(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|bb|cal)|mbox|fbox|boxed|operatorname|boldsymbol|bm)"
    r"\s{0,5}(?=\{)"
)
_SPACING = re.compile(r"(?:\\(?:[,;:! ]|(?:quad|qquad|left|right|big|Big)(?![a-zA-Z]))|[~\s])+")
_BRACES = str.maketrans("", "", "{}$")
_LONE_LETTER = re.compile(r"[\W_]*([^\W\d_])[\W_]*")
_INTRO = re.compile(
    r"^(?:the )?(?:correct |final |best )?(?:option|choice|answer|letter)(?: is)?\b ?:? ?", re.IGNORECASE
)
_LABEL = re.compile(r"[\W_]*([A-Z])(?: ?[:.)\]\-–—]+| (?:is|because|since)\b)[\W_]*")
_OTHER_LETTER = re.compile(r"(?:^|\bor\b|\band\b|[/,;|&])[\s(\[*]{0,4}([A-Z])(?:[).:\]]|\s*$)")
_SHORTEST_INSIDE = 3  # a shorter option text stands inside too many answers by chance


def plain(text: str) -> str:
    """Drop LaTeX wrappers, braces, dollar signs and extra spaces, keeping what a reader sees."""
    return _SPACING.sub(" ", _WRAPPER.sub("", text).translate(_BRACES)).strip()


def strict_choice(answer: str, options: Options) -> str | None:
    """Return the letter when the answer is one capital letter of the options, with nothing but punctuation around."""
    letter = _lone_letter(plain(answer))
    return letter if letter in options else None


def lenient_choice(answer: str, options: Options) -> str | None:
    """Return the letter of the one option that the answer names by letter, by letter and text, or by text."""
    said = plain(answer)
    letter = _lone_letter(said) or _lone_letter(_INTRO.sub("", said))
    if letter is not None and letter.upper() in options:
        return letter.upper()
    same = [key for key, text in options.items() if _folded(text) == _folded(said)]
    if same:
        return same[0] if len(same) == 1 else None
    label = _LABEL.match(said) or _LABEL.match(_INTRO.sub("", said))
    if label is not None and label[1] in options:
        return _labelled(label, options)
    return _only_option_inside(_folded(said), options)


def _lone_letter(text: str) -> str | None:
    found = _LONE_LETTER.fullmatch(text)
    return found[1] if found else None


def _labelled(label: re.Match[str], options: Options) -> str | None:
    letter, rest = label[1], label.string[label.end() :]
    if _folded(rest) == _folded(options[letter]):
        return letter
    others = {found[1] for found in _OTHER_LETTER.finditer(rest)} & set(options)
    return None if others - {letter} else letter


def _only_option_inside(said: str, options: Options) -> str | None:
    found = {key: text for key, text in _folded_options(options) if _stands_in(text, said)}
    longest = {
        key for key, text in found.items() if not any(text != other and text in other for other in found.values())
    }
    return longest.pop() if len(longest) == 1 else None


def _folded_options(options: Options) -> list[tuple[str, str]]:
    return [(key, _folded(text)) for key, text in options.items()]


def _stands_in(text: str, said: str) -> bool:
    if len(text) < _SHORTEST_INSIDE or text not in said:
        return False
    return re.search(rf"(?<![\w.+-]){re.escape(text)}(?!\w)", said) is not None


def _folded(text: str) -> str:
    return plain(text).casefold().rstrip(".;, ")
