import copy
import pickle

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.config.faults import Expanded, Fault
from rollmill.config.yaml_source import MAX_VALUES, read_yaml
from rollmill.contracts.json import JsonValue


def value_of(text: str, **environ: str) -> JsonValue:
    document = read_yaml(text, environ)
    assert document.faults == []
    return document.value


def faults_of(text: str, **environ: str) -> list[Fault]:
    return read_yaml(text, environ).faults


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("-12", -12),
        ("0x1F", 31),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        ("!!float 12", 12.0),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_scalars_follow_the_core_schema(scalar: str, value: JsonValue) -> None:
    read = value_of(f"x: {scalar}\n")["x"]

    assert read == value
    assert type(read) is type(value)


def test_keys_are_always_text() -> None:
    assert value_of("1: a\ntrue: b\n2026-01-31: c\n~: d\n") == {"1": "a", "true": "b", "2026-01-31": "c", "~": "d"}


def test_an_empty_text_is_null() -> None:
    assert value_of("") is None
    assert value_of("# nothing\n") is None


def test_a_byte_order_mark_is_ignored() -> None:
    assert value_of("\ufeffa: 1\n") == {"a": 1}


def test_aliases_and_merge_keys_are_followed() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [{x: 9}, *a], z: 4}\nd: [*a]\n"

    assert value_of(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 9, "y": 2, "z": 4},
        "d": [{"x": 1, "y": 2}],
    }


@pytest.mark.parametrize(
    ("text", "pointer", "detail"),
    [
        ("a: [1\nb: 2\n", "line 2, column 2", "not valid YAML: while parsing a flow sequence expected ',' or ']'"),
        ("a: {b: 1\n", "line 2, column 1", "not valid YAML: while parsing a flow mapping expected ',' or '}'"),
        ("a: @b\n", "line 1, column 4", "not valid YAML: while scanning for the next token found character '@'"),
        ("a: *nowhere\n", "line 1, column 4", "not valid YAML: found undefined alias 'nowhere'"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1", "not valid YAML: expected a single document in the stream"),
        ("a: \x01\n", "", "not YAML text: special characters are not allowed at character 3"),
        ("[" * 5000, "", "nested too deeply"),
    ],
)
def test_a_syntax_error_is_told_with_its_place(text: str, pointer: str, detail: str) -> None:
    [(where, told)] = faults_of(text)

    assert where == pointer
    assert told.startswith(detail)


def test_a_syntax_error_does_not_quote_the_lines_around_it() -> None:
    [(_, told)] = faults_of("token: hunter2\nx: [hunter2: @\n")

    assert "hunter2" not in told


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a: 1\nb: 2\na: 3\n", [("a", "the key is there twice (lines 1 and 3)")]),
        ("s:\n  w: {k: 1, k: 2}\n  w: 3\n", [("s.w.k", "the key is there twice (lines 2 and 2)"), ("s.w", "the key is there twice (lines 2 and 3)")]),
        ("a: [{b: 1}, {b: 1, b: 2}]\n", [("a.1.b", "the key is there twice (lines 1 and 1)")]),
        ("a: {? [x] : 1}\n", [("a", "a key must be text")]),
        ("a: {<<: 1}\n", [("a", "`<<` must merge a mapping, or a list of mappings")]),
        ("a: !custom 1\n", [("a", "the tag !custom is not supported")]),
        ("a: !!set {x}\n", [("a", "the tag !!set is not supported")]),
        ("a: !!timestamp 2026-01-31\n", [("a", "the tag !!timestamp is not supported")]),
        ("a: !!python/object/apply:os.system [ls]\n", [("a", "the tag !!python/object/apply:os.system is not supported")]),
        ("a: !!int x\n", [("a", "the value does not fit its tag !!int")]),
        ("a: 18446744073709551616\n", [("a", "the number is too large")]),
        ("a: " + "9" * 5000, [("a", "the number is too large")]),
        ("a: 1e999\n", [("a", "the number is too large")]),
        ('a: "\\ud800"\n', [("a", "not valid Unicode text")]),
        ("a: &a {b: [*a]}\n", [("a.b.0", "an alias that holds itself")]),
        ("a: ${B}\nc: x${D}y${D}\n", [("a", "the environment variable B is not set; set it, or write ${B:-default}"), ("c", "the environment variable D is not set; set it, or write ${D:-default}")]),
        ("a: ${B-c}\n", [("a", "a placeholder is written ${NAME} or ${NAME:-default}, and a literal $ as $$")]),
        ("a: ${\n", [("a", "a placeholder is written ${NAME} or ${NAME:-default}, and a literal $ as $$")]),
        ("a: '${A:-${B}}'\n", [("a", "a placeholder is written ${NAME} or ${NAME:-default}, and a literal $ as $$")]),
        ("a: &a ${B}\nc: [*a, *a]\n", [("a", "the environment variable B is not set; set it, or write ${B:-default}")]),
    ],
)  # fmt: skip
def test_a_fault_is_told_once_with_its_path(text: str, faults: list[tuple[str, str]]) -> None:
    assert faults_of(text) == faults


def test_what_could_not_be_read_is_null_and_known() -> None:
    document = read_yaml("a: &a ${B}\nc: [*a, 1]\nd: !x {y: 1}\n", {})

    assert document.value == {"a": None, "c": [None, 1], "d": None}
    assert document.unreadable == {("a",), ("c", 0), ("d",)}


def test_aliases_cannot_blow_up_a_small_file() -> None:
    lines = ["a0: &a0 [1, 1]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    [(where, told)] = faults_of("\n".join(lines))

    assert where.startswith("line ")
    assert told == f"not valid YAML: more than {MAX_VALUES} values"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("${A}", "1"),
        ("x${A}y${B}", "x1ytwo"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${MISSING:-d}", "d"),
        ("${MISSING:-}", ""),
        ("${MISSING:-a b:c $5 $$}", "a b:c $5 $"),
        ("${A:-d}", "1"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("$$${A}", "$1"),
        ("$A $ $5", "$A $ $5"),
    ],
)
def test_placeholders_are_expanded_inside_strings(written: str, value: str) -> None:
    assert value_of(f"x: '{written}'", A="1", B="two", EMPTY="") == {"x": value}


def test_an_expanded_value_stays_a_string_and_is_never_read_as_yaml() -> None:
    nasty = "true\nb: [1, ${A}] # $$"

    assert value_of("a: ${A}\nc: ${N}", A=nasty, N="12") == {"a": nasty, "c": "12"}


def test_keys_are_not_expanded() -> None:
    assert value_of("${A}: 1", A="x") == {"${A}": 1}


@settings(max_examples=50)
@given(st.text())
def test_any_environment_value_arrives_as_it_is(value: str) -> None:
    assert value_of("a: ${A}", A=value)["a"] == value


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8", exclude_characters="$")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60)
@given(_json)
def test_json_written_as_yaml_is_read_back(value: JsonValue) -> None:
    # JSON style: every string in double quotes, so that both schemas of YAML agree.
    text = yaml.safe_dump(value, default_flow_style=True, default_style='"', allow_unicode=False)

    assert read_yaml(text, {}).faults == []
    assert value_of(text) == value


def test_an_expanded_string_shows_how_it_was_written() -> None:
    secret = value_of("a: x-${A}", A="hunter2")["a"]

    assert isinstance(secret, Expanded)
    assert secret == "x-hunter2"
    assert secret.template == "x-${A}"
    assert repr(secret) == "'x-${A}'"
    assert repr({"a": [secret]}) == "{'a': ['x-${A}']}"


def test_an_expanded_string_survives_copies() -> None:
    secret = Expanded("hunter2", "${A}")

    for twin in (copy.deepcopy(secret), pickle.loads(pickle.dumps(secret))):
        assert twin == "hunter2"
        assert twin.template == "${A}"
