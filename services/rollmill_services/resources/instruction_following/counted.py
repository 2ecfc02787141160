"""Instructions about how many of something there are, and about keywords and their places."""

import re
from itertools import pairwise

from rollmill_services.resources.instruction_following.given import Check, Given
from rollmill_services.resources.instruction_following.pieces import (
    bare,
    blank_line_paragraphs,
    divided,
    occurrences,
    sentences,
    word_occurrences,
    words,
)

_SHORTEST_PALINDROME = 3


def number_sentences(given: Given) -> Check:
    """Compare the number of sentences."""
    fits = given.compared("num_sentences")
    return lambda text: fits(len(sentences(text)))


def number_words(given: Given) -> Check:
    """Compare the number of words; `don't` counts as two, as in the original."""
    fits = given.compared("num_words")
    return lambda text: fits(len(re.findall(r"\w+", text)))


def number_paragraphs(given: Given) -> Check:
    """Want so many paragraphs between markdown dividers."""
    count = given.whole("num_paragraphs")
    return lambda text: len(divided(text) or ()) == count


def two_divided_paragraphs(given: Given) -> Check:
    """Want two paragraphs between markdown dividers."""
    return lambda text: len(divided(text) or ()) == 2


def two_paragraphs(given: Given) -> Check:
    """Want two paragraphs between empty lines."""
    return lambda text: len(blank_line_paragraphs(text)) == 2


def nth_paragraph_first_word(given: Given) -> Check:
    """Want so many paragraphs between empty lines, one of them with this first word."""
    count, nth, word = given.whole("num_paragraphs"), given.whole("nth_paragraph"), bare(given.text("first_word"))

    def check(text: str) -> bool:
        found = blank_line_paragraphs(text)
        return len(found) == count and 1 <= nth <= count and bare(found[nth - 1].split()[0]) == word

    return check


def counting_composition(given: Given) -> Check:
    """Want three paragraphs between markdown dividers, with so many sentences of so many words each."""
    sentence_count, word_count = given.whole("n_sent"), given.whole("n_words")

    def check(text: str) -> bool:
        paragraphs = [sentences(part) for part in divided(text) or ()]
        return [len(part) for part in paragraphs] == [sentence_count] * 3 and all(
            len(words(sentence)) == word_count for part in paragraphs for sentence in part
        )

    return check


def existence(given: Given) -> Check:
    """Want all keywords, also inside of words."""
    keywords = given.texts("keywords")
    return lambda text: all(occurrences(text, keyword) for keyword in keywords)


def frequency(given: Given) -> Check:
    """Compare how often a keyword is there, also inside of words."""
    keyword, fits = given.text("keyword"), given.compared("frequency")
    return lambda text: fits(occurrences(text, keyword))


def word_frequency(given: Given) -> Check:
    """Compare how often a keyword is there as a whole word."""
    keyword, fits = given.text("keyword"), given.compared("frequency")
    return lambda text: fits(word_occurrences(text, keyword))


def forbidden_words(given: Given) -> Check:
    """Want none of the words."""
    forbidden = given.texts("forbidden_words")
    return lambda text: not any(word_occurrences(text, word) for word in forbidden)


def exclude_word(given: Given) -> Check:
    """Want the word nowhere."""
    word = given.text("keyword")
    return lambda text: not word_occurrences(text, word)


def word_once(given: Given) -> Check:
    """Want the word exactly once."""
    word = given.text("keyword")
    return lambda text: word_occurrences(text, word) == 1


def increment_word(given: Given) -> Check:
    """Want one word once and another twice."""
    once, twice = given.text("keyword1"), given.text("keyword2")
    return lambda text: word_occurrences(text, once) == 1 and word_occurrences(text, twice) == 2


def keyword_position(given: Given) -> Check:
    """Want the word as the m-th of the n-th sentence."""
    word, nth, place = bare(given.text("keyword")), given.whole("n"), given.whole("m")

    def check(text: str) -> bool:
        found = sentences(text)
        spoken = words(found[nth - 1]) if 1 <= nth <= len(found) else []
        return 1 <= place <= len(spoken) and bare(spoken[place - 1]) == word

    return check


def letter_frequency(given: Given) -> Check:
    """Compare how often a letter, or another character, is there in either case."""
    letter, fits = given.text("letter").lower(), given.compared("let_frequency", "let_relation")
    return lambda text: fits(text.lower().count(letter))


def letter_counting(given: Given) -> Check:
    """Compare the number of letters from A to Z."""
    fits = given.compared("N")
    return lambda text: fits(len(re.findall(r"[A-Za-z]", text)))


def lowercase_counting(given: Given) -> Check:
    """Want at most so many words in lower case."""
    most = given.whole("N")
    return lambda text: len(re.findall(r"\b[a-z]+\b", text)) <= most


def capital_word_frequency(given: Given) -> Check:
    """Compare the number of words in capitals."""
    fits = given.compared("capital_frequency", "capital_relation")
    return lambda text: fits(sum(word.isupper() for word in words(text)))


def unique_words(given: Given) -> Check:
    """Want no word twice, in any case."""

    def check(text: str) -> bool:
        spoken = [word.lower() for word in words(text)]
        return len(set(spoken)) == len(spoken)

    return check


def no_consecutive_letters(given: Given) -> Check:
    """Want no word that begins with the letter that follows the first letter of the word before it."""

    def check(text: str) -> bool:
        firsts = [word[0].lower() for word in words(text)]
        return not any(a.isalpha() and b.isalpha() and ord(b) - ord(a) == 1 for a, b in pairwise(firsts))

    return check


def palindrome(given: Given) -> Check:
    """Want a word of at least three letters that reads the same backwards."""

    def check(text: str) -> bool:
        spoken = (word.lower() for word in words(text))
        return any(len(word) >= _SHORTEST_PALINDROME and word.isalpha() and word == word[::-1] for word in spoken)

    return check
