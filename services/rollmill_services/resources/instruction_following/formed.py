"""Instructions about the form of an answer: its beginning and end, marks, case, copies and language."""

import json
import re

from rollmill_services.resources.instruction_following.given import Check, Given
from rollmill_services.resources.instruction_following.pieces import bare, language, sentences, separated, words

_ANSWERS = ("my answer is yes.", "my answer is no.", "my answer is maybe.")
_STARS = "******"


def placeholders(given: Given) -> Check:
    """Want at least so many placeholders in square brackets."""
    count = given.whole("num_placeholders")
    return lambda text: len(re.findall(r"\[[^\[\]\n]*\]", text)) >= count


def postscript(given: Given) -> Check:
    """Want a postscript: a line with this marker; the dots of P.S. may be followed by a space."""
    marker = re.escape(given.text("postscript_marker").strip().rstrip(".").lower()).replace(r"\.", r"\.\s?")
    return lambda text: re.search(rf"(?<!\w){marker}", text.lower()) is not None


def bullet_lists(given: Given) -> Check:
    """Want exactly so many lines that begin with a bullet, `*` or `-`."""
    count = given.whole("num_bullets")
    return lambda text: len(re.findall(r"^[^\S\n]*(?:\*[^*\n]|-)", text, re.MULTILINE)) == count


def constrained_response(given: Given) -> Check:
    """Want one of three fixed answers."""
    return lambda text: any(option in text.lower() for option in _ANSWERS)


def highlighted_sections(given: Given) -> Check:
    """Want at least so many sections in `*single*` or `**double**` asterisks."""
    count = given.whole("num_highlights")

    def check(text: str) -> bool:
        marked = re.findall(r"\*\*([^\n*]*)\*\*|\*([^\n*]*)\*", text)
        return sum(bool(double.strip() or single.strip()) for double, single in marked) >= count

    return check


def multiple_sections(given: Given) -> Check:
    """Want at least so many numbered sections, each begun by this word and its number."""
    count, name = given.whole("num_sections"), re.escape(given.text("section_spliter").strip())
    return lambda text: len(re.findall(rf"{name}\s?\d+", text)) >= count


def json_format(given: Given) -> Check:
    """Want JSON, maybe in one fenced block."""

    def check(text: str) -> bool:
        inner = re.sub(r"^```(?:json)?", "", text.strip(), flags=re.IGNORECASE).removesuffix("```")
        try:
            json.loads(inner)
        except (ValueError, RecursionError):
            return False
        return True

    return check


def title(given: Given) -> Check:
    """Want a title in double angular brackets."""
    return lambda text: any(found.strip("<> ") for found in re.findall(r"<<([^\n<>]+)>>", text))


def two_responses(given: Given) -> Check:
    """Want two different answers with six asterisks between them."""

    def check(text: str) -> bool:
        parts = separated(text, _STARS) or []
        return len(parts) == 2 and parts[0] != parts[1]

    return check


def sentence_hyphens(given: Given) -> Check:
    """Want hyphens in place of the spaces between sentences."""

    def check(text: str) -> bool:
        parts = re.split(r"(?<=[.!?])-", text.strip())
        return all(part == part.strip() and len(sentences(part)) == 1 for part in parts)

    return check


def square_brackets(given: Given) -> Check:
    """Want every word in square brackets."""
    return lambda text: all(word.startswith("[") and word.rstrip(".,;:!?").endswith("]") for word in text.split())


def bigram_wrapping(given: Given) -> Check:
    """Want every two words in double angular brackets: `<<I am>> <<at home>>`."""

    def check(text: str) -> bool:
        spoken = text.split()
        pairs = zip(spoken[::2], spoken[1::2], strict=False)  # the last word of an odd number may stand alone
        return all(one.startswith("<<") and other.rstrip(".,;:!?").endswith(">>") for one, other in pairs)

    return check


def end_phrase(given: Given) -> Check:
    """Want this phrase at the very end."""
    phrase = given.text("end_phrase").strip().lower()
    return lambda text: text.strip().strip('"').lower().endswith(phrase)


def quotation(given: Given) -> Check:
    """Want all of it in double quotation marks."""
    return lambda text: len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'


def start_is_end(given: Given) -> Check:
    """Want the same word at the beginning and at the end, with nothing after it."""

    def check(text: str) -> bool:
        spoken = words(text)
        return len(spoken) > 1 and spoken[0].lower() == spoken[-1].lower() and text.rstrip().endswith(spoken[-1])

    return check


def first_word_of_sentences(given: Given) -> Check:
    """Want every sentence to begin with the word."""
    word = bare(given.text("first_word"))
    return lambda text: {bare(sentence.split()[0]) for sentence in sentences(text)} == {word}


def first_word_of_answer(given: Given) -> Check:
    """Want the answer to begin with the word."""
    word = bare(given.text("first_word"))
    return lambda text: bare(text.split()[0]) == word


def last_word_of_sentences(given: Given) -> Check:
    """Want every sentence to end with the word."""
    word = bare(given.text("last_word"))
    return lambda text: {bare(sentence.split()[-1]) for sentence in sentences(text)} == {word}


def last_word_of_answer(given: Given) -> Check:
    """Want the answer to end with the word."""
    word = bare(given.text("last_word"))
    return lambda text: bare(text.split()[-1]) == word


def without(mark: str) -> Check:
    """Want the mark nowhere."""
    return lambda text: mark not in text


def capitals(given: Given) -> Check:
    """Want English in capital letters."""
    return lambda text: text.isupper() and language(text.lower()) in ("en", None)


def small_letters(given: Given) -> Check:
    """Want English in small letters."""
    return lambda text: text.islower() and language(text) in ("en", None)


def response_language(given: Given) -> Check:
    """Want this language; an answer without letters to tell it by passes."""
    code = given.text("language").strip().lower()

    def check(text: str) -> bool:
        found = language(text)
        return found is None or found == code or found.split("-")[0] == code

    return check


def repeat_prompt(given: Given) -> Check:
    """Want the prompt repeated first."""
    prompt = given.text("prompt_to_repeat").strip().lower()
    return lambda text: text.strip().lower().startswith(prompt)


def copied(given: Given) -> Check:
    """Want the prompt and nothing else."""
    prompt = given.text("prompt_to_repeat").strip().lower()
    return lambda text: text.strip().lower() == prompt


def copied_often(given: Given) -> Check:
    """Want the prompt so many times, with six asterisks between them."""
    prompt, count = given.text("prompt_to_repeat").strip().lower(), given.whole("N")

    def check(text: str) -> bool:
        parts = separated(text, _STARS) or []
        return len(parts) == count and all(part.lower() == prompt for part in parts)

    return check


def copied_span(given: Given) -> Check:
    """Want the characters of the prompt between two indices; the last one may be there or not."""
    prompt, start, end = given.text("prompt_to_repeat").lower(), given.whole("n_start"), given.whole("n_end")
    spans = {prompt[start:end].strip(), prompt[start : end + 1].strip()}
    return lambda text: text.strip().lower() in spans


def repeat_phrase(given: Given) -> Check:
    """Want the phrase so many times, each time with one word between its first and last replaced."""
    phrase, count = [bare(word) for word in given.text("phrase").split()], given.whole("small_n")

    def check(text: str) -> bool:
        spoken = [bare(word) for word in text.split()]
        windows = (spoken[start : start + len(phrase)] for start in range(len(spoken) - len(phrase) + 1))
        near = (
            window
            for window in windows
            if window[0] == phrase[0] and window[-1] == phrase[-1] and _different(window, phrase) == 1
        )
        return sum(1 for _ in near) == count

    return check


def _different(some: list[str], others: list[str]) -> int:
    return sum(one != other for one, other in zip(some, others, strict=True))
