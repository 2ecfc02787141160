from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.report.markup import Markup, join, raw_style, tag, text


def test_text_is_escaped_and_markup_is_not() -> None:
    made = tag("p", 'a < b & "c"', tag("b", "d"), None, 7, ["e", ["f"]])

    assert made == "<p>a &lt; b &amp; &quot;c&quot;<b>d</b>7ef</p>"
    assert isinstance(made, Markup)


def test_attributes_are_escaped_and_named_as_in_html() -> None:
    made = tag(
        "a", "x", class_="c", aria_label='"><script>', hidden=True, title=None, open=False, x=1.5, y=2.0, z=1 / 3
    )

    assert made == ('<a class="c" aria-label="&quot;&gt;&lt;script&gt;" hidden="hidden" x="1.5" y="2" z="0.33">x</a>')


def test_void_elements_have_no_end() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8"/>'


def test_control_and_reordering_characters_are_made_visible() -> None:
    assert text("\x1b[31mred\x00") == r"\x1b[31mred\x00"
    assert text("a\u202eb\u2066c") == r"a\u202eb\u2066c"
    assert text("line\n\tnext") == "line\n\tnext"
    assert text("\ud800") == r"\ud800"


def test_a_style_sheet_that_could_end_its_element_is_refused() -> None:
    with pytest.raises(ValueError, match="style sheet"):
        raw_style("p {} </style><script>")
    assert raw_style("p > b { color: red }") == "<style>p > b { color: red }</style>"


def test_pieces_are_joined_in_order() -> None:
    assert join("<", tag("b", ">"), [None, "&"]) == "&lt;<b>&gt;</b>&amp;"


@settings(max_examples=200)
@given(st.text(), st.text())
def test_any_text_comes_back_as_text(content: str, attribute: str) -> None:
    made = tag("p", content, title=attribute)
    start, _, rest = made.partition(">")

    assert "<" not in rest.removesuffix("</p>")
    assert start.count('"') == 2
    if content.isprintable() and attribute.isprintable():
        element = ElementTree.fromstring(made)
        assert (element.text or "") == content
        assert element.attrib["title"] == attribute
