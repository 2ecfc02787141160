from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import BaseModel, SecretBytes, SecretStr

from rollmill.contracts.json import dumps

MASK: Final = "**********"
"""Stands for a secret, as pydantic shows one."""
SHORTEST: Final = 4
"""Shorter values are no secrets, and blotting them out would make text unreadable."""


def secret_values(settings: BaseModel) -> tuple[str, ...]:
    """Return every secret that settings hold, found by its type, at any depth."""
    found = _found([getattr(settings, name) for name in type(settings).model_fields])
    return long_enough(dict.fromkeys(found))


def long_enough(values: Iterable[str]) -> tuple[str, ...]:
    """Return those that are long enough to be secrets."""
    return tuple(value for value in values if len(value) >= SHORTEST)


def without_secrets(text: str, hidden: Iterable[str]) -> str:
    """Return a text, which may be JSON, with every one of these values masked."""
    for value in hidden:
        for form in (value, dumps(value).decode()[1:-1]):
            text = text.replace(form, MASK)
    return text


def _found(value: object) -> Iterator[str]:
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, SecretBytes):
        yield value.get_secret_value().decode("utf-8", "replace")
    elif isinstance(value, BaseModel):
        yield from secret_values(value)
    elif isinstance(value, dict):
        yield from _found([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _found(item)
