"""The grammar of filter expressions, parsed by hand and never evaluated as code.

filter     = all { "or" all }
all        = single { "and" single }
single     = "not" single | "(" filter ")" | comparison
comparison = operand sign operand { sign operand }        0.1 < mean_reward < 0.9
sign       = "<" | "<=" | ">" | ">=" | "==" | "!="
operand    = number | text in quotes | name | `any name`
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from rollmill.errors import InputError

Sign: TypeAlias = Literal["<", "<=", ">", ">=", "==", "!="]

MAX_LENGTH: Final = 4000
"""Longest expression, in characters."""
MAX_DEPTH: Final = 100
"""Deepest nesting of parentheses and `not`."""
_SHOWN: Final = 60
_WORDS: Final = frozenset({"and", "or", "not"})

_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
  | (?P<text>"[^"]*"|'[^']*')
  | (?P<quoted>`[^`]+`)
  | (?P<name>[A-Za-z_]\w*(?:[/.]\w+)*)
  | (?P<sign><=|>=|==|!=|<|>)
  | (?P<bracket>[()])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the expression."""

    kind: str
    text: str
    start: int
    """Characters before it."""


@dataclass(frozen=True, slots=True)
class Name:
    """A column of the task frame."""

    name: str
    start: int


@dataclass(frozen=True, slots=True)
class Constant:
    """A number or a text."""

    value: float | str
    start: int


Operand: TypeAlias = Name | Constant


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two operands or more, each compared with the next; it is true when every one of these is."""

    operands: tuple[Operand, ...]
    signs: tuple[Sign, ...]
    """One fewer than operands."""
    starts: tuple[int, ...]
    """Where each sign is."""


@dataclass(frozen=True, slots=True)
class Not:
    """True where its operand is false."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Both:
    """True where all operands are (`and`), or where any is (`or`)."""

    word: Literal["and", "or"]
    operands: tuple["Node", ...]


Node: TypeAlias = Comparison | Not | Both


def parse(text: str) -> Node:
    """Parse an expression.

    Raises:
        InputError: it is not one; tells the position, with a caret under it.
    """
    if len(text) > MAX_LENGTH:
        raise InputError(f"the filter has {len(text)} characters, more than {MAX_LENGTH}")
    parser = _Parser(text)
    node = parser.filter()
    if parser.next.kind != "end":
        raise parser.wrong("expected `and`, `or` or the end")
    return node


def fault(text: str, start: int, problem: str, *, hint: str = "") -> InputError:
    """Return the error for a place of an expression: what is wrong, the expression, a caret, a hint.

    Args:
        text: the whole expression.
        start: characters before the place.
        problem: what is wrong there.
        hint: one more line.
    """
    before, after = text[max(0, start - _SHOWN) : start], text[start : start + _SHOWN]
    left = "…" if start > _SHOWN else ""
    right = "…" if start + _SHOWN < len(text) else ""
    lines = [
        f"filter, character {start + 1}: {problem}",
        f"  {left}{_on_one_line(before)}{_on_one_line(after)}{right}",
        f"  {' ' * (len(left) + len(before))}^",
    ]
    return InputError("\n".join([*lines, hint] if hint else lines), position=start + 1)


def _on_one_line(text: str) -> str:
    """Replace what would move the caret: each control character by one space."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    start = 0
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            raise fault(text, start, _unreadable(text[start:]))
        kind = match.lastgroup or ""
        if kind == "name" and match[0] in _WORDS:
            kind = "word"
        if kind != "space":
            found.append(Token(kind, match[0], start))
        start = match.end()
    return [*found, Token("end", "", len(text))]


def _unreadable(rest: str) -> str:
    if rest[0] in "\"'`":
        return f"no closing {rest[0]}"
    if rest[0] == "=":
        return "`=` compares nothing; write `==`"
    if rest[0] in "&|!":
        return "write `and`, `or` and `not`"
    if rest[0] in "+-*/%":
        return "there is no arithmetic in filters"
    return f"{rest[0]!r} means nothing here"


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    def wrong(self, problem: str) -> InputError:
        found = f"`{self.next.text}`" if self.next.text else "the end"
        return fault(self._text, self.next.start, f"{problem}, found {found}")

    def filter(self) -> Node:
        return self._joined("or")

    def _joined(self, word: Literal["and", "or"]) -> Node:
        operands = [self._operand_of(word)]
        while self._is(word):
            self._take()
            operands.append(self._operand_of(word))
        return operands[0] if len(operands) == 1 else Both(word, tuple(operands))

    def _operand_of(self, word: Literal["and", "or"]) -> Node:
        return self._joined("and") if word == "or" else self._single()

    def _single(self) -> Node:
        if not (self._is("not") or self._is("(")):
            return self._comparison()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise fault(self._text, self.next.start, f"nested deeper than {MAX_DEPTH}")
        node = self._negated() if self._take().text == "not" else self._bracketed()
        self._depth -= 1
        return node

    def _negated(self) -> Node:
        return Not(self._single())

    def _bracketed(self) -> Node:
        node = self.filter()
        if not self._is(")"):
            raise self.wrong("expected `)`")
        self._take()
        return node

    def _comparison(self) -> Comparison:
        operands, signs, starts = [self._operand()], [], []
        while self.next.kind == "sign":
            token = self._take()
            signs.append(_sign(token.text))
            starts.append(token.start)
            operands.append(self._operand())
        if not signs:
            raise self.wrong("expected a comparison such as `< 0.5`")
        return Comparison(tuple(operands), tuple(signs), tuple(starts))

    def _operand(self) -> Operand:
        token = self.next
        if token.kind not in ("number", "text", "name", "quoted"):
            raise self.wrong("expected a name, a number or a text in quotes")
        self._take()
        if token.kind == "number":
            return Constant(float(token.text), token.start)
        if token.kind == "text":
            return Constant(token.text[1:-1], token.start)
        return Name(token.text.strip("`"), token.start)

    def _is(self, text: str) -> bool:
        return self.next.kind in ("word", "bracket") and self.next.text == text

    def _take(self) -> Token:
        token = self.next
        self._at += 1
        return token


def _sign(text: str) -> Sign:
    signs: dict[str, Sign] = {"<": "<", "<=": "<=", ">": ">", ">=": ">=", "==": "==", "!=": "!="}
    return signs[text]
