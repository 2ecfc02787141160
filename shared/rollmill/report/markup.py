"""HTML and SVG made so that nothing can be left unescaped: only this module makes `Markup`, all other text is text."""

from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias

from rollmill.observability.logging import escape_control


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


Content: TypeAlias = "str | int | Iterable[Content] | None"
"""What goes into an element: markup as it is, other text escaped, nothing for None."""

Attribute: TypeAlias = str | int | float | bool | None
"""True is an attribute that is just there; False and None are none at all."""

_VOID: Final = frozenset({"meta", "br", "hr", "col"})


def text(value: str) -> Markup:
    r"""Return text as HTML: markup characters escaped, control and reordering characters made visible (`\x1b`)."""
    return Markup(escape(escape_control(value, keep_lines=True), quote=True))


def tag(name: str, /, *children: Content, **attributes: Attribute) -> Markup:
    """Make an element.

    Args:
        name: its name.
        children: its content.
        attributes: by name, with `_` for `-`; one at the end is dropped, for names such as `class_`.

    Returns:
        HTML that is well-formed XML too.
    """
    words = "".join(_attribute(key, value) for key, value in attributes.items())
    return Markup(f"<{name}{words}/>" if name in _VOID else f"<{name}{words}>{join(*children)}</{name}>")


def join(*children: Content) -> Markup:
    """Put pieces one after the other."""
    return Markup("".join(map(_rendered, children)))


def raw_style(css: str) -> Markup:
    """Make a style element of our own style sheet, whose text is not escaped.

    Raises:
        ValueError: it holds what could end the element.
    """
    if "<" in css or "&" in css:
        raise ValueError("a style sheet cannot hold '<' or '&'")
    return Markup(f"<style>{css}</style>")


def _rendered(child: Content) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int):
        return text(str(child))
    return join(*child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.removesuffix("_").replace("_", "-")
    return f' {name}="{name if value is True else text(_number(value))}"'


def _number(value: str | int | float) -> str:
    """Write coordinates with two decimals at most: a chart has thousands of them."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
