import re
from collections.abc import Sequence

_TAGGED = re.compile(r"<action>([^<>]{0,100})</action>", re.IGNORECASE)
_READ_CHARACTERS = 2_000


def action_number(text: str, actions: Sequence[str]) -> int | None:
    """Find which action a model's answer names; None when it names none.

    The last `<action>...</action>` decides, and names an action or its number. Without any, it is the last name of an
    action that stands in the text as a word of its own. Upper and lower case are the same.

    Args:
        text: the answer; only its last 2,000 characters are read.
        actions: names in the order of their numbers.
    """
    end = text[-_READ_CHARACTERS:]
    tagged = _TAGGED.findall(end)
    if tagged:
        return _named(tagged[-1].strip().lower(), actions)
    names = "|".join(map(re.escape, actions))
    found = re.findall(rf"\b({names})\b", end, re.IGNORECASE)
    return _named(found[-1].lower(), actions) if found else None


def _named(word: str, actions: Sequence[str]) -> int | None:
    numbered = {str(number): number for number in range(len(actions))}
    return numbered.get(word, actions.index(word) if word in actions else None)
