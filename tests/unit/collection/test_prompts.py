from pathlib import Path

import pytest

from rollmill.collection.prompts import PromptConfig, has_input, load_prompt
from rollmill.contracts.json import JsonValue
from rollmill.errors import InputError


def test_doubled_braces_are_braces_and_fields_are_filled_from_the_top_level() -> None:
    prompt = PromptConfig(system="Answer as {{json}}.", user="{question} of {n:03d} in {{{unit}}}")

    assert prompt.fields() == {"question", "n", "unit"}
    assert prompt.render({"question": "{evil}", "n": 7, "unit": "m"}) == [
        {"role": "system", "content": "Answer as {json}."},
        {"role": "user", "content": "{evil} of 007 in {m}"},
    ]


def test_without_a_system_text_there_is_only_the_user_message() -> None:
    assert PromptConfig(user="hi").render({}) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("template", ["{}", "{0}", "{a.b}", "{a[b]}", "{a.__class__}", "{a:{b}}", "{a:{b.__class__}}"])
def test_only_plain_field_names_are_allowed(tmp_path: Path, template: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(f"user: '{template}'\n")
    with pytest.raises(InputError, match=r"p\.yaml: user: .*only plain field names"):
        load_prompt(path)


def test_every_fault_of_the_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("system: '{'\nusr: hi\n")
    with pytest.raises(InputError) as caught:
        load_prompt(path)

    assert all(name in str(caught.value) for name in ("p.yaml: ", "user: ", "system: ", "usr: "))


@pytest.mark.parametrize("content", ["- a", "just text", "", "user: [", "user: ''", "user: 5"])
def test_what_is_no_prompt_config_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=r"p\.yaml: "):
        load_prompt(path)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"user: \xff\xfe")
    for name in ("gone.yaml", "b.yaml"):
        with pytest.raises(InputError, match=name):
            load_prompt(tmp_path / name)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("user: |\n  {q}\nsystem: be brief\n")

    assert load_prompt(path) == PromptConfig(user="{q}\n", system="be brief")


@pytest.mark.parametrize(
    ("params", "expected"),
    [({"input": "x"}, True), ({"input": [{}]}, True), ({"input": []}, False), ({"input": ""}, False), ({}, False)],
)
def test_an_empty_input_is_none(params: JsonValue, expected: bool) -> None:
    assert has_input({"responses_create_params": params}) is expected
    assert not has_input({})
