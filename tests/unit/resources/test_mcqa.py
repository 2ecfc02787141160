from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import InputError
from rollmill.server.sessions import Session
from rollmill_services.resources.mcqa.app import create_app
from rollmill_services.resources.mcqa.choices import plain
from rollmill_services.resources.mcqa.extract import EXTRACTORS
from rollmill_services.resources.mcqa.regex_worker import answer, last_match
from rollmill_services.resources.mcqa.verifier import Mcqa, McqaSettings

OPTIONS = [{"A": "Copper"}, {"B": "Iron"}, {"C": "Iron oxide"}, {"D": "the C language and D"}, {"E": "$x^{2}$"}]


def rollout(text: str, **fields: JsonValue) -> Rollout:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return Rollout({"options": OPTIONS, "expected_answer": "B", "response": {"output": [message]}, **fields})


async def verdict_of(text: str, **fields: JsonValue) -> Verdict:
    return await Mcqa().verify(rollout(text, **fields), Session("s", {}))


@pytest.fixture
async def mcqa() -> AsyncIterator[Mcqa]:
    """A verifier whose processes end with the test."""
    verifier = Mcqa(McqaSettings(regex_timeout_seconds=20.0))
    yield verifier
    await verifier.shutdown()


async def extracted(mcqa: Mcqa, text: str, pattern: str, **fields: JsonValue) -> Verdict:
    template = {"output_regex": pattern}
    return await mcqa.verify(rollout(text, template_metadata=template, **fields), Session("s", {}))


LETTER_IN_BOX = [
    (r"\boxed{B}", "B"),
    (r"\boxed{ B }", "B"),
    (r"\boxed{(B)}", "B"),
    (r"\boxed{[C]}", "C"),
    (r"\boxed{B.}", "B"),
    (r"\boxed{**B**}", "B"),
    (r"\boxed{E:}", "E"),
    (r"\boxed{{B}}", "B"),
    (r"\boxed{\text{B}}", "B"),
    (r"\boxed{\text{ (B) }}", "B"),
    (r"\boxed{\mathbf{\text{B}}}", "B"),
    (r"\boxed{\boxed{B}}", "B"),
    (r"\boxed{$B$}", "B"),
    (r"\boxed{\left(B\right)}", "B"),
    ("$$\\boxed{\nB\n}$$", "B"),
    (r"I thought \boxed{A}, but it is \boxed{B}.", "B"),
    (r"\boxed{A} no, \boxed{B", "A"),
    (r"\boxed{B}, again \boxed{B}", "B"),
]
NO_LETTER_IN_BOX = [
    "",
    "B",
    r"\boxed{}",
    r"\boxed{Z}",
    r"\boxed{F}",
    r"\boxed{7}",
    r"\boxed{B7}",
    r"\boxed{AB}",
    r"\boxed{A or B}",
    r"\boxed{A, B}",
    r"\boxed{A/B}",
    r"\boxed{A and B}",
    r"\boxed{\text{A or B}}",
    r"\boxed{A} or \boxed{B}",
    r"$\boxed{A}$, $\boxed{B}$",
    r"\boxed{A} \text{ or } \boxed{B}",
    r"\boxed{A}/\boxed{B}",
    r"\boxed{B",
    r"\boxed B",
    r"\boxed{β}",
]


@pytest.mark.parametrize("mode", ["strict_single_letter_boxed", "lenient_boxed"])
@pytest.mark.parametrize(("text", "letter"), LETTER_IN_BOX)
async def test_a_letter_alone_in_the_last_box_is_the_answer(mode: str, text: str, letter: str) -> None:
    verdict = await verdict_of(text, grading_mode=mode)

    assert verdict.details == {"extracted_answer": letter}
    assert verdict.reward == float(letter == "B")


@pytest.mark.parametrize("mode", [None, "strict_single_letter_boxed", "lenient_boxed"])
@pytest.mark.parametrize("text", NO_LETTER_IN_BOX)
async def test_anything_else_in_the_box_is_no_answer(mode: str | None, text: str) -> None:
    verdict = await verdict_of(text, grading_mode=mode)

    assert verdict.details == {"extracted_answer": None}
    assert verdict.reward == 0.0


NAMED_LENIENTLY = [
    (r"b", "B"),
    (r"B: Iron", "B"),
    (r"E: $x^2$", "E"),
    (r"\text{B: Iron}", "B"),
    (r"B. Iron", "B"),
    (r"(B) Iron", "B"),
    (r"\textbf{(B)}\ 7", "B"),
    (r"B - Iron", "B"),
    ("\nC: something else altogether\n", "C"),
    (r"Option B", "B"),
    (r"the correct answer is B", "B"),
    (r"B is right", "B"),
    (r"Iron", "B"),
    (r"\text{iron}.", "B"),
    (r"Iron oxide", "C"),
    (r"it must be iron", "B"),
    (r"x^2", "E"),
    (r"D: the C language and D", "D"),
    (r"D: the language D or C: ", None),
    (r"B: Iron or C: Iron oxide", None),
    (r"A) or B)", None),
    (r"(A), (B)", None),
    (r"A. B.", None),
    (r"copper and iron", None),
    (r"environment", None),
    (r"A large one", None),
    (r"F: Iron?", "B"),
    (r"none of them", None),
]


@pytest.mark.parametrize(("content", "letter"), NAMED_LENIENTLY)
async def test_a_lenient_box_also_names_an_option_by_label_or_text(content: str, letter: str | None) -> None:
    verdict = await verdict_of(rf"So \boxed{{{content}}}.", grading_mode="lenient_boxed")

    assert verdict.details["extracted_answer"] == letter


@pytest.mark.parametrize("content", ["b", "B: Iron", "Iron", r"\text{B: Iron}", "Option B"])
async def test_a_strict_box_holds_one_capital_letter_and_no_words(content: str) -> None:
    assert (await verdict_of(rf"\boxed{{{content}}}")).details["extracted_answer"] is None


async def test_two_options_of_the_same_text_cannot_be_told_apart_by_it() -> None:
    options = [{"A": "one"}, {"B": "One"}]

    verdict = await verdict_of(r"\boxed{one}", options=options, grading_mode="lenient_boxed")

    assert verdict.details["extracted_answer"] is None


@pytest.mark.parametrize(
    ("text", "plain_letter", "markdown_letter"),
    [
        ("Answer: B", "B", "B"),
        ("answer : (B)", "B", "B"),
        ("The final answer: B. Iron", "B", "B"),
        ("Answer: A\nOn reflection:\nAnswer: B", "B", "B"),
        ("Answer:\nB", "B", "B"),
        (r"Answer: \boxed{B}", "B", "B"),
        (r"Answer: $\text{B}$", "B", "B"),
        ("Answer: Iron", "B", "B"),
        ("Answer: **B**", "B", "B"),
        ("**Answer:** B", "B", "B"),
        ("**Answer**: B", None, "B"),
        ("**Answer**: __B__", None, "B"),
        ("Answer: A or B", None, None),
        ("Answer: A, B", None, None),
        ("Answer: Z", None, None),
        ("Answer:", None, None),
        ("B", None, None),
        (r"\boxed{B}", None, None),
        ("Answer B", None, None),
        ("", None, None),
    ],
)
async def test_the_answer_stands_after_the_last_colon(
    text: str, plain_letter: str | None, markdown_letter: str | None
) -> None:
    first = await verdict_of(text, grading_mode="lenient_answer_colon")
    second = await verdict_of(text, grading_mode="lenient_answer_colon_md")

    assert first.details["extracted_answer"] == plain_letter
    assert second.details["extracted_answer"] == markdown_letter


async def test_a_custom_regex_takes_its_last_match_and_wins(mcqa: Mcqa) -> None:
    text = r"<<A>> or rather <<B>>, although \boxed{C}"

    verdict = await extracted(mcqa, text, r"<<([A-E])>>")

    assert verdict.details == {"extracted_answer": "B"}
    assert verdict.reward == 1.0


@pytest.mark.parametrize(
    ("text", "pattern", "letter"),
    [
        ("pick: iron.", r"pick: (\w+)", "B"),
        ("pick b", r"pick (\w)", "B"),
        ("pick B", r"(?<=pick )\w", "B"),
        ("x=B", r"y=(\w)|x=(\w)", "B"),
        ("pick Z", r"pick (\w)", None),
        ("pick A or B", r"pick (.*)", None),
        (r"nothing here, but \boxed{A}", r"pick (\w)", "A"),
        ("nothing here", r"pick (\w)", None),
        (r"\boxed{A}", "", "A"),
    ],
)
async def test_a_custom_regex_is_read_leniently_and_needs_a_match(
    mcqa: Mcqa, text: str, pattern: str, letter: str | None
) -> None:
    assert (await extracted(mcqa, text, pattern)).details == {"extracted_answer": letter}


async def test_a_custom_regex_sees_the_last_20000_characters(mcqa: Mcqa) -> None:
    assert (await extracted(mcqa, "<B>" + " " * 20_000, "<(.)>")).details["extracted_answer"] is None
    assert (await extracted(mcqa, " " * 1_000_000 + "<B>", "<(.)>")).details["extracted_answer"] == "B"


async def test_a_regex_that_never_ends_is_stopped_and_the_next_one_served() -> None:
    verifier = Mcqa(McqaSettings(regex_timeout_seconds=2.0))
    try:
        verdict = await extracted(verifier, "a" * 60 + "!", "(a+)+$")
        assert verdict == Verdict(0.0, {"extracted_answer": None, "output_regex_timed_out": True})
        assert (await extracted(verifier, "<B>", "<(.)>")).reward == 1.0
    finally:
        await verifier.shutdown()


@pytest.mark.parametrize("pattern", ["[[[[", "(", "(?P<x", "*", "a{99999999999}", 5, ["a"], "a" * 501])
async def test_a_wrong_regex_is_an_error_that_names_it(mcqa: Mcqa, pattern: JsonValue) -> None:
    with pytest.raises(InputError, match="output_regex"):
        await extracted(mcqa, "x", pattern)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("options", None),
        ("options", "A"),
        ("options", ["A"]),
        ("options", [{"AA": "x"}]),
        ("options", [{"1": "x"}]),
        ("options", [{"B": "x"}, {"b": "y"}]),
        ("expected_answer", None),
        ("expected_answer", ""),
        ("expected_answer", "Z"),
        ("expected_answer", ["B"]),
        ("grading_mode", "loose"),
        ("grading_mode", ["lenient_boxed"]),
    ],
)
async def test_a_missing_or_wrong_field_is_an_error_that_names_it(name: str, value: JsonValue) -> None:
    with pytest.raises(InputError, match=name) as caught:
        await verdict_of("x", **{name: value})

    (fault,) = caught.value.extensions["errors"]
    assert fault["pointer"] == f"/{name}"


async def test_fields_may_stand_in_the_verifier_metadata_and_options_in_one_object() -> None:
    row = rollout(r"\boxed{b: two}").row
    metadata = {"options": {"a": "one", "b": "two"}, "expected_answer": " b ", "grading_mode": "lenient_boxed"}
    bare = {"response": row["response"], "verifier_metadata": metadata}

    assert (await Mcqa().verify(Rollout(bare), Session("s", {}))).reward == 1.0


@pytest.mark.parametrize("mode", EXTRACTORS)
@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 140_000,
        "\\boxed{" + "B" * 1_000_000 + "}",
        "\\boxed{" + "(" * 90_000 + "}",
        "\\boxed{" + "\\text{" * 10_000 + "}" * 10_001,
        "\\boxed{" + "or A " * 19_000 + "}",
        "[[[[",
        "answer:" * 140_000,
        "*" * 1_000_000 + "Answer" + " " * 1_000,
        "\\boxed{B:" + " " * 90_000 + "}",
        "\0\\boxed{\0}",
    ],
)
async def test_a_hostile_answer_gets_a_verdict(mode: str, text: str) -> None:
    assert (await verdict_of(text, grading_mode=mode)).reward in (0.0, 1.0)


@pytest.mark.parametrize("response", [None, {}, {"output": None}, {"output": [{"type": "reasoning"}]}, "text"])
async def test_a_response_without_text_is_no_answer(response: JsonValue) -> None:
    row = {"options": OPTIONS, "expected_answer": "B", "response": response}

    assert await Mcqa().verify(Rollout(row), Session("s", {})) == Verdict(0.0, {"extracted_answer": None})


@settings(max_examples=150)
@given(
    st.sampled_from(sorted(EXTRACTORS)),
    st.lists(st.sampled_from([*"ABZab \\{}()[]$*:.,\n", "\\boxed{", "Answer:", "or"]), max_size=40).map("".join),
)
def test_only_letters_of_the_options_are_ever_extracted(mode: str, text: str) -> None:
    assert EXTRACTORS[mode](text, {"A": "x y", "B": "z"}) in ("A", "B", None)


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_plain_text_has_no_braces_and_no_outer_spaces(text: str) -> None:
    assert not set(plain(text)) & set("{}$")
    assert plain(text) == plain(text).strip()


def test_the_last_match_yields_its_first_group_that_took_part() -> None:
    assert last_match(r"a(b)?(c)?", "ab abc ac") == "c"
    assert last_match("[[x]", "x[") == "["
    assert last_match("z", "abc") is None


def test_the_regex_worker_answers_with_the_match_or_says_what_is_wrong_with_the_pattern() -> None:
    assert answer({"pattern": "<(.)>", "text": "<é>"}) == {"match": "é"}
    assert "not a regular expression" in answer({"pattern": "(", "text": "<é>"})["error"]


def test_its_verdicts_need_only_the_row() -> None:
    assert Mcqa.reverify_mode == "stateless"
    assert create_app(McqaSettings(name="mcqa")).title
