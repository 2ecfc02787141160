from fractions import Fraction
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.config.settings import ServiceSettings
from rollmill.contracts.json import JsonValue
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import InputError
from rollmill.server.sessions import Session
from rollmill_services.resources.string_match.app import create_app
from rollmill_services.resources.string_match.compare import CLOSE_REWARD, exact_score, lenient_score
from rollmill_services.resources.string_match.extract import EXTRACTORS
from rollmill_services.resources.string_match.normalize import plain, without_latex
from rollmill_services.resources.string_match.numbers import read_number, read_quantity
from rollmill_services.resources.string_match.states import full_name
from rollmill_services.resources.string_match.units import canonical_unit
from rollmill_services.resources.string_match.verifier import StringMatch


def rollout(text: str, **fields: JsonValue) -> Rollout:
    message = {"type": "message", "role": "assistant", "content": text}
    return Rollout({"expected_answer": "Paris", "response": {"output": [message]}, **fields})


async def verdict_of(text: str, **fields: JsonValue) -> Verdict:
    return await StringMatch().verify(rollout(text, **fields), Session("s", {}))


SAME = [
    ("paris", "Paris"),
    ("  New   york\n", "new york"),
    ("Straße", "STRASSE"),
    ("ﬁnd", "find"),
    ("Ｐａｒｉｓ", "paris"),
    ("cafe\u0301", "café"),
    ("“Paris”", "Paris"),
    ("«Paris»", "Paris"),
    ("'Paris.'", "Paris"),
    ("Paris!?", "Paris"),
    ("O’Brien", "O'Brien"),
    ("H₂O", "H2O"),
    ("−5", "-5"),
    ("3.0", "3"),
    ("007", "7"),
    ("+4", "4"),
    (".5", "0.5"),
    ("1,234", "1234"),
    ("1,234,567.5", "1234567.5"),
    ("1 234", "1234"),
    ("1\u202f234", "1234"),
    ("1_000", "1000"),
    ("1’000", "1000"),
    ("1e3", "1000"),
    ("1.5 × 10^3", "1500"),
    ("6.022e23", "6.022 × 10^23"),
    ("10²", "10^2"),
    ("1/2", "0.5"),
    ("½", "0.5"),
    ("2½", "2.5"),
    ("2 1/2", "2.5"),
    (r"\frac{1}{2}", "0.5"),
    (r"\frac12", "1/2"),
    (r"\dfrac{1}{2}", "1/2"),
    (r"\frac{\sqrt{2}}{2}", "sqrt(2)/2"),
    (r"1.5 \times 10^{3}", "1500"),
    (r"\text{Paris}", "Paris"),
    (r"\mathrm{Na Cl}", "na cl"),
    (r"\boxed{Paris}", "Paris"),
    (r"\(\text{Paris}\)", "Paris"),
    ("$x$", "x"),
    (r"25\%", "25%"),
    (r"New\ York", "New York"),
    ("red, blue", "blue, red"),
    ("red and blue", "blue, red"),
    ("red, white, and blue", "white; red; blue"),
    ("1, 2", "2, 1"),
    ("2.0, 1/2", "0.5, 2"),
    (r"\{3, 1\}", "{1, 3}"),
    ("TX, CA", "California and Texas"),
    ("CA", "California"),
    ("new york", "NY"),
    ("D.C", "D.C."),
    ("District of Columbia", "DC"),
    ("Austin, TX", "Austin, Texas"),
    ("80 km/h", "80"),
    ("80", "80 km/h"),
    ("80 kmh", "80 km/h"),
    ("80 kilometers per hour", "80 km/h"),
    ("5 ft", "5 feet"),
    ("5 kg", "5 kilograms"),
    ("12 inches", "12 in"),
    ("9 m²", "9 square meters"),
    ("3 cubic feet", "3 ft^3"),
    ("5 m squared", "5 m^2"),
    ("9.8 m/s^2", "9.8"),
    ("5 µm", "5 μm"),
    ("10 Ω", "10 ohms"),
    ("20 degrees Celsius", "20 °C"),
    ("20 ℃", "20"),
    (r"30^\circ", "30"),
    ("25%", "25"),
    ("25 percent", "25%"),
    ("$20", "20"),
    (r"\$20", "20 dollars"),
    ("-$20", "-20"),
    ("€1,000", "1000 euros"),
]
DIFFERENT = [
    ("London", "Paris"),
    ("Paris, France", "Paris"),
    ("not Paris", "Paris"),
    ("", "x"),
    (".", "x"),
    ("!", "?"),
    (r"\text{}", r"\mathrm{}"),
    ("1945", "1946"),
    ("123456789", "123456788"),
    ("-0.5", "0.5"),
    ("10²", "102"),
    ("1,234", "234, 1"),
    ("1,23", "123"),
    ("(1, 2)", "(2, 1)"),
    ("[0, 1)", "(0, 1]"),
    ("a, b", "a, a, b"),
    ("a, b", "a"),
    ("80 km/h", "80 m/s"),
    ("68 °F", "68 °C"),
    ("5 kg", "5 g"),
    ("$20", "€20"),
    ("5 million", "5"),
    ("5 or 6", "5"),
    ("5-6", "5"),
    ("3:45", "3"),
    ("1.2.3", "1.2"),
    ("192.168.1.1", "192.168"),
    ("100%", "1"),
    ("1/0", "1"),
    ("1e999", "1"),
    ("1e9999999", "1"),
    ("nan", "0"),
    ("inf", "0"),
    ("AL", "AK"),
    ("5 m/s", "5 m"),
]


@pytest.mark.parametrize(("answer", "expected"), SAME)
def test_another_spelling_of_the_same_answer_is_right(answer: str, expected: str) -> None:
    assert lenient_score(answer, expected) == 1.0
    assert lenient_score(expected, answer) == 1.0


@pytest.mark.parametrize(("answer", "expected"), DIFFERENT)
def test_another_answer_is_wrong(answer: str, expected: str) -> None:
    assert lenient_score(answer, expected) == 0.0
    assert lenient_score(expected, answer) == 0.0


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("3.14", "3.14159", CLOSE_REWARD),
        ("0.3333", "1/3", CLOSE_REWARD),
        ("99.95 cm", "100", CLOSE_REWARD),
        ("-1.4142", "-1.41421", CLOSE_REWARD),
        ("3.1", "3.14159", 0.0),
        ("0.33", "1/3", 0.0),
        ("0.001", "0", 0.0),
        ("99.95 cm", "100 m", 0.0),
    ],
)
def test_a_close_number_is_nearly_right(answer: str, expected: str, reward: float) -> None:
    assert lenient_score(answer, expected) == reward


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("NaCl", "NaCl", 1.0),
        (" NaCl\n", "NaCl ", 1.0),
        ("nacl", "NaCl", 0.0),
        ("1.0", "1", 0.0),
        ("NaCl.", "NaCl", 0.0),
    ],
)
async def test_with_case_only_the_trimmed_text_counts(answer: str, expected: str, reward: float) -> None:
    assert exact_score(answer, expected) == reward
    fields = {"extraction_mode": "full_response", "case_sensitive": True, "expected_answer": expected}
    assert (await verdict_of(answer, **fields)).reward == reward


EXTRACTIONS = [
    ("boxed", r"So \(\boxed{\text{Paris}}\).", "Paris"),
    ("boxed", r"\boxed{London}, no: \boxed{ Paris }", "Paris"),
    ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    ("boxed", r"\boxed{**Paris**}", "Paris"),
    ("boxed", r"\boxed{\text{$\mathbf{Paris}$}}", "Paris"),
    ("boxed", r"\boxed{\text{a} or \text{b}}", r"\text{a} or \text{b}"),
    ("boxed", r"\boxed{}", None),
    ("boxed", r"\boxed{Paris", None),
    ("boxed", "Final answer: Paris", None),
    ("final_answer", "Final answer: Paris", "Paris"),
    ("final_answer", "final  ANSWER:Paris  \nbye", "Paris"),
    ("final_answer", "Final answer: London\nFinal answer: Paris", "Paris"),
    ("final_answer", "**Final Answer:** Paris", "Paris"),
    ("final_answer", "**Final Answer**: **Paris**", "Paris"),
    ("final_answer", "The final answer is Paris", "Paris"),
    ("final_answer", "The final answer is: `Paris`", "Paris"),
    ("final_answer", "Final answer:\n\nParis", "Paris"),
    ("final_answer", "### Final Answer\n\nParis\nmore", "Paris"),
    ("final_answer", r"Final answer: it is $\boxed{Paris}$.", "Paris"),
    ("final_answer", r"no label, \boxed{Paris}", "Paris"),
    ("final_answer", r"\boxed{Paris} Final answer:", "Paris"),
    ("final_answer", "Paris", None),
    ("final_answer", "The finalanswer: Paris", None),
    ("last_line", "London\nParis\n \n", "Paris"),
    ("last_line", "Paris", "Paris"),
    ("last_line", "a\n**Paris**", "Paris"),
    ("last_line", "a\r\nParis\r\n", "Paris"),
    ("last_line", " \n ", None),
    ("full_response", " Paris\n", "Paris"),
    ("full_response", "It is\nParis", "It is\nParis"),
    ("full_response", "", None),
]


@pytest.mark.parametrize(("mode", "text", "answer"), EXTRACTIONS)
async def test_the_answer_is_taken_from_where_the_mode_says(mode: str, text: str, answer: str | None) -> None:
    verdict = await verdict_of(text, extraction_mode=mode)

    assert verdict.details == {"extracted_answer": answer}
    assert verdict.reward == float(answer == "Paris")


async def test_the_final_answer_is_the_default_mode() -> None:
    assert (await verdict_of("Final answer: paris")).reward == 1.0
    assert (await verdict_of(r"\boxed{paris}", extraction_mode=None)).reward == 1.0


async def test_a_number_may_be_expected_as_a_number() -> None:
    assert (await verdict_of(r"\boxed{2.50}", expected_answer=2.5)).reward == 1.0
    assert (await verdict_of(r"\boxed{0}", expected_answer=0)).reward == 1.0


async def test_fields_may_stand_in_the_verifier_metadata() -> None:
    row = {"response": rollout("Oslo").row["response"]}
    row["verifier_metadata"] = {"expected_answer": "oslo", "extraction_mode": "full_response"}

    assert (await StringMatch().verify(Rollout(row), Session("s", {}))).reward == 1.0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("expected_answer", None),
        ("expected_answer", " "),
        ("expected_answer", True),
        ("expected_answer", ["Paris"]),
        ("extraction_mode", "first_line"),
        ("extraction_mode", ["boxed"]),
        ("case_sensitive", "yes"),
        ("case_sensitive", 1),
    ],
)
async def test_a_missing_or_wrong_field_is_an_error_that_names_it(name: str, value: JsonValue) -> None:
    with pytest.raises(InputError, match=name) as caught:
        await verdict_of("x", **{name: value})

    (fault,) = caught.value.extensions["errors"]
    assert fault["pointer"] == f"/{name}"


@pytest.mark.parametrize("response", [None, {}, {"output": [{"type": "function_call", "name": "x"}]}])
async def test_a_response_without_text_is_no_answer(response: JsonValue) -> None:
    row = {"expected_answer": "Paris", "response": response}

    assert await StringMatch().verify(Rollout(row), Session("s", {})) == Verdict(0.0, {"extracted_answer": None})


@pytest.mark.parametrize("mode", EXTRACTORS)
@pytest.mark.parametrize(
    "text",
    [
        "(" * 1_000_000,
        "\\frac{" * 100_000,
        "\\boxed{" + "\\frac{" * 10_000 + "}" * 10_001,
        "1" * 1_000_000,
        "1," * 500_000,
        "final answer: " * 70_000,
        "final answer" + " " * 1_000_000,
        "$" * 1_000_000,
        "\\text{" * 100_000 + "}" * 100_000,
        "\n" * 1_000_000 + "x",
        "[[[[",
        "\0",
    ],
)
async def test_a_hostile_answer_gets_a_verdict(mode: str, text: str) -> None:
    assert (await verdict_of(text, extraction_mode=mode)).reward == 0.0


@pytest.mark.parametrize(
    "text", ["(" * 1_999, "1" * 1_999, "a," * 999, "\\frac{" * 333, "9^" * 900, "1e999" * 300, " 1/1" * 400]
)
def test_a_hostile_answer_short_enough_for_every_rule_is_wrong(text: str) -> None:
    assert lenient_score(text, "5 km") == 0.0


@settings(max_examples=200)
@given(st.text(max_size=40))
def test_every_text_that_says_something_equals_itself(text: str) -> None:
    assert lenient_score(text, text) == 1.0


@pytest.mark.parametrize("symbol", ["?", ".", "'", '"', "…"])
def test_an_expected_punctuation_mark_counts_as_it_is(symbol: str) -> None:
    assert lenient_score(f" {symbol}", symbol) == 1.0
    assert lenient_score("!", symbol) == 0.0


@settings(max_examples=200)
@given(st.text(alphabet="ab1,.;$%{}()\\ '\"½²", max_size=12), st.text(alphabet="ab1,.;$%{}()\\ '\"½²", max_size=12))
def test_a_right_answer_is_right_in_both_directions(left: str, right: str) -> None:
    assert (lenient_score(left, right) == 1.0) == (lenient_score(right, left) == 1.0)


@settings(max_examples=100)
@given(st.integers(-(10**12), 10**12))
def test_separators_do_not_change_a_number(value: int) -> None:
    assert read_number(f"{value:,}") == read_number(str(value)) == Fraction(value)


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["red", "blue", "tx", "2", "1/2", "new york"]), min_size=2, max_size=6), st.randoms())
def test_the_order_of_a_list_does_not_matter(elements: list[str], random: Random) -> None:
    shuffled = random.sample(elements, len(elements))

    assert lenient_score(", ".join(shuffled), "; ".join(elements)) == 1.0


@settings(max_examples=100)
@given(st.text(max_size=40))
def test_normalizing_twice_changes_nothing_more(text: str) -> None:
    assert plain(plain(text)) == plain(text)


def test_latex_is_read_as_a_reader_sees_it() -> None:
    assert without_latex(r"$\frac{a+b}{2}$") == "(a+b)/2"
    assert without_latex(r"\left(\sqrt{2}\right)") == "(sqrt(2))"
    assert without_latex(r"\unknown{x}") == "unknownx"


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("", ""),
        ("km", "km"),
        ("miles per hour", "mi/h"),
        ("m·s^-1", None),
        ("m s^-1", "m·s-1"),
        ("widget", None),
        ("/", None),
    ],
)
def test_units_have_one_spelling(text: str, unit: str | None) -> None:
    assert canonical_unit(text) == unit


def test_a_quantity_is_a_number_with_a_known_unit() -> None:
    assert read_quantity("80 km/h") == (Fraction(80), "km/h")
    assert read_quantity("80 apples") is None
    assert read_quantity("km") is None


def test_every_state_has_a_postal_abbreviation() -> None:
    names = {full_name(a + b) for a in "abcdefghijklmnopqrstuvwxyz" for b in "abcdefghijklmnopqrstuvwxyz"}

    assert len({name for name in names if len(name) > 2}) == 51
    assert full_name("mo") == "missouri"
    assert full_name("zz") == "zz"


def test_its_verdicts_need_only_the_row() -> None:
    assert StringMatch.reverify_mode == "stateless"
    assert create_app(ServiceSettings(name="string_match")).title
