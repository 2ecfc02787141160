import re
from collections.abc import Callable

from rollmill.grading.boxed import last_boxed

_WINDOW = 100_000
_FINAL_ANSWER = re.compile(
    r"\bfinal[ \t]{1,4}answer\b[*_`]{0,4}[ \t]{0,4}(?:is\b[ \t]{0,4}:?|[:：]|(?=\n))[*_`]{0,4}\s{0,20}([^\n]*)",
    re.IGNORECASE,
)
_WRAPPER = re.compile(
    r"\\{1,2}(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|it|sf|tt|bb|cal)|mbox|operatorname|boldsymbol|boxed)"
    r"\s{0,5}\{"
)
_LONGEST_WRAPPED = 10_000
_FRAMES = (("**", "**"), ("__", "__"), ("`", "`"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


def boxed_answer(text: str) -> str | None:
    r"""Return what the last `\boxed{}` holds."""
    content = last_boxed(text)
    return None if content is None else bare(content)


def stated_answer(text: str) -> str | None:
    r"""Return what follows the last `Final answer:` on its line or the next, else what the last box holds."""
    found: re.Match[str] | None = None
    for match in _FINAL_ANSWER.finditer(text[-_WINDOW:]):
        found = match
    if found is None or not found[1].strip():
        return boxed_answer(text)
    return boxed_answer(found[1]) or bare(found[1])


def last_line(text: str) -> str | None:
    """Return the last line that is not blank."""
    lines = text.strip().rsplit("\n", 1)
    return bare(lines[-1])


def full_response(text: str) -> str | None:
    """Return all of the answer text."""
    return text.strip()


EXTRACTORS: dict[str, Callable[[str], str | None]] = {
    "boxed": boxed_answer,
    "final_answer": stated_answer,
    "last_line": last_line,
    "full_response": full_response,
}


def bare(answer: str) -> str:
    r"""Remove marks that enclose the whole answer: spaces, Markdown emphasis, math delimiters, `\text{}`."""
    text = answer.strip()
    for _ in range(8):  # wrappers seldom nest deeper, and a hostile answer must not cost more
        inner = _unwrapped(text).strip()
        if inner == text:
            break
        text = inner
    return text


def _unwrapped(text: str) -> str:
    if len(text) <= _LONGEST_WRAPPED and (wrapper := _WRAPPER.match(text)) and text.endswith("}"):
        inner = text[wrapper.end() : -1]
        return inner if _is_balanced(inner) else text
    for opening, closing in _FRAMES:
        inner = text.removeprefix(opening).removesuffix(closing)
        if inner and len(text) == len(inner) + len(opening) + len(closing) and opening not in inner:
            return inner
    return text


def _is_balanced(text: str) -> bool:
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False  # the wrapper's own brace closes before the end
    return depth == 0
