import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.grading.boxed import last_boxed, last_boxes

ALPHABET = st.sampled_from(["\\boxed{", "{", "}", "\\{", "\\}", "\\", "a", " ", "\\\\"])


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{7}", "7"),
        (r"first \boxed{1}, then \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        (r"\boxed {4}", "4"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("\\boxed{\n6\n}", "\n6\n"),
        (r"\boxed{}", ""),
        (r"{{ \boxed{8}", "8"),
        (r"}} \boxed{9}", "9"),
        (r"\boxed{1} and \boxed{2", "1"),
        (r"\boxed{1", None),
        (r"\boxed 1", None),
        (r"boxed{1}", None),
        (r"\unboxed{1}", None),
        ("", None),
    ],
)
def test_the_last_complete_box_counts(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_the_last_two_boxes_come_with_the_text_between_them() -> None:
    boxes = last_boxes(r"\boxed{0} \boxed{1} or \boxed{2}")

    assert [box.content for box in boxes] == ["1", "2"]
    assert [box.before for box in boxes] == ["", " or "]


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 150_000, "{" * 1_000_000, "}" * 1_000_000, "\\" * 999_999, "\\boxed{" * 70_000 + "}" * 500_000],
)
def test_a_hostile_megabyte_is_read_without_fault(text: str) -> None:
    last_boxed(text)


def test_only_the_end_of_a_long_text_counts() -> None:
    assert last_boxed(r"\boxed{1}" + " " * 200_000) is None
    assert last_boxed(" " * 1_000_000 + r"\boxed{1}") == "1"


@settings(max_examples=100)
@given(st.text(alphabet="abc 12\n+", max_size=20), st.lists(ALPHABET, max_size=12))
def test_a_box_at_the_end_is_found_after_anything(content: str, before: list[str]) -> None:
    text = "".join(before).replace("\\boxed{", "") + "." + rf"\boxed{{{content}}}"

    assert last_boxed(text) == content


@settings(max_examples=200)
@given(st.lists(ALPHABET, max_size=30))
def test_a_found_box_always_stands_in_the_text(parts: list[str]) -> None:
    text = "".join(parts)
    content = last_boxed(text)

    assert content is None or f"{{{content}}}" in text
