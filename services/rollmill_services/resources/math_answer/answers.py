import re

from rollmill.grading.boxed import last_boxed

LONGEST_ANSWER = 4_000
"""Characters; a longer answer is compared as text only."""
_TAIL = 2_000
_PLAIN_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})")
_FRAMES = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def final_answer(text: str) -> str | None:
    r"""Return the content of the last box, or the end of the text when there is no box; None when that is empty."""
    boxed = last_boxed(text)
    answer = text[-_TAIL:] if boxed is None else boxed
    return unframed(answer) or None


def has_box(text: str) -> bool:
    r"""Say whether the text holds a complete `\boxed{...}`."""
    return last_boxed(text) is not None


def unframed(expression: str) -> str:
    r"""Remove the marks around a formula: dollar signs, `\(...\)`, `\[...\]` and outer spaces."""
    text = expression.strip()
    for opening, closing in _FRAMES:
        inner = text.removeprefix(opening).removesuffix(closing)
        whole = len(text) == len(inner) + len(opening) + len(closing)
        if whole and opening not in inner and closing not in inner:
            return inner.strip()
    return text


def plain_integer(text: str) -> int | None:
    """Return the value of an integer that has only one spelling, such as `-12`; None for anything else."""
    return int(text) if text != "-0" and _PLAIN_INTEGER.fullmatch(text) else None


def same_text(answer: str, expected: str) -> bool:
    """Say whether two answers are the same but for spaces."""
    return "".join(answer.split()) == "".join(expected.split())
