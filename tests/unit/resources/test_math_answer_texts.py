import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill_services.resources.math_answer.answers import final_answer, plain_integer, same_text, unframed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{ x }", "x"),
        (r"\boxed{$x$}", "x"),
        ("x = 3", "x = 3"),
        (r"\boxed{}", None),
        (" \n", None),
        ("a" * 3_000, "a" * 2_000),
    ],
)
def test_the_final_answer_is_the_last_box_or_the_end_of_the_text(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("framed", "bare"),
    [
        ("$x$", "x"),
        ("$$x$$", "x"),
        (r" \( x \) ", "x"),
        (r"\[x\]", "x"),
        ("$x$ or $y$", "$x$ or $y$"),
        (r"\(x\), \(y\)", r"\(x\), \(y\)"),
        ("$5", "$5"),
        ("x", "x"),
        ("$", "$"),
    ],
)
def test_marks_around_a_whole_formula_are_removed(framed: str, bare: str) -> None:
    assert unframed(framed) == bare


@pytest.mark.parametrize("text", ["", "-0", "007", "+1", "1.0", "1,000", "1" * 19, "٣", "x", "--1"])
def test_a_number_of_several_spellings_is_no_plain_integer(text: str) -> None:
    assert plain_integer(text) is None


@settings(max_examples=50)
@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_a_plain_integer_has_its_value(value: int) -> None:
    assert plain_integer(str(value)) == value


def test_spaces_do_not_distinguish_texts() -> None:
    assert same_text("x + 1", "x+1\n")
    assert not same_text("x", "X")
