"""Words, sentences and paragraphs of an answer; all in time that grows with its length only."""

import re

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]*_]*+(?=\s|$)|[。！？]++[”’」』）]*+")
_ABBREVIATIONS = frozenset({"mr", "mrs", "ms", "dr", "prof", "sr", "jr", "vs", "e.g", "i.e", "cf", "approx"})
_LIST_NUMBER = re.compile(r"\s*(?:\d{1,3}|[A-Za-z])")
_INITIAL = re.compile(r"[A-HJ-Z]")
_DIVIDER = re.compile(r"\s?(?:\*\*\*|\* \* \*)\s?")
_LONGEST_SAMPLE = 10_000


def words(text: str) -> list[str]:
    """Return the words, without punctuation; `don't` and `well-known` are one word each."""
    return _WORD.findall(text)


def bare(word: str) -> str:
    """Return a word in lower case, without the punctuation around it."""
    return word.strip(".,;:!?…\"'“”‘’()[]{}<>*_`-").lower()


def sentences(text: str) -> list[str]:
    """Split at full stops, exclamation and question marks; what follows the last of them is a sentence, too.

    The dots of abbreviations, initials and numbered lists end no sentence, nor does one before a small letter.
    """
    found, start = [], 0
    for end in _END.finditer(text):
        if _ends(text, start, end):
            found.append(text[start : end.end()].strip())
            start = end.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if words(sentence)]


def _ends(text: str, start: int, end: re.Match[str]) -> bool:
    if end[0] != ".":
        return True
    line = text[max(start, end.start() - 40) : end.start()].rsplit("\n", 1)[-1]
    last = line.split(" ")[-1].lstrip("(\"'*")
    follows = text[end.end() : end.end() + 10].lstrip()[:1]
    abbreviated = last.lower() in _ABBREVIATIONS or _INITIAL.fullmatch(last) or _LIST_NUMBER.fullmatch(line)
    return not follows or not (follows.islower() or abbreviated)


def divided(text: str) -> list[str] | None:
    """Return the parts between markdown dividers (`***`); None when one in the middle is empty."""
    return _without_empty_ends(_DIVIDER.split(text))


def separated(text: str, separator: str) -> list[str] | None:
    """Return the parts between separators; None when one in the middle is empty."""
    return _without_empty_ends(text.split(separator))


def _without_empty_ends(parts: list[str]) -> list[str] | None:
    kept = [part.strip() for nth, part in enumerate(parts) if part.strip() or 0 < nth < len(parts) - 1]
    return kept if all(kept) else None


def blank_line_paragraphs(text: str) -> list[str]:
    """Return the paragraphs that stand between empty lines."""
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def occurrences(text: str, keyword: str) -> int:
    """Count a keyword, also inside of words, in any case."""
    return text.lower().count(keyword.lower())


def word_occurrences(text: str, keyword: str) -> int:
    """Count a keyword as a whole word, in any case."""
    return len(re.findall(rf"(?<!\w){re.escape(keyword)}(?!\w)", text, re.IGNORECASE))


def language(text: str) -> str | None:
    """Return the code of the language of a text (`en`, `zh-cn`); None when it has no letters to tell it by."""
    import langdetect  # an extra

    langdetect.DetectorFactory.seed = 0  # else it draws, and the same answer would not always get the same verdict
    try:
        return str(langdetect.detect(text[:_LONGEST_SAMPLE]))
    except langdetect.LangDetectException:
        return None
