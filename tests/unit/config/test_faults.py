from pathlib import Path
from typing import Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rollmill.config.faults import WITHHELD, Expanded, Fault, config_error, did_you_mean, model_faults
from rollmill.contracts.json import JsonObject


class Square(BaseModel):
    shape: Literal["square"]
    side: int


class Circle(BaseModel):
    shape: Literal["circle"]
    radius: float


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    steps: int = Field(default=1, ge=1)
    either: int | dict[str, int] = 1
    shape: Square | Circle | None = None
    tagged: Square | Circle | None = Field(default=None, discriminator="shape")
    key: SecretStr | None = None
    word: str = "ok"
    url: HttpUrl | None = None
    number: UUID | None = None
    coded: str = ""

    @field_validator("word")
    @classmethod
    def _known_word(cls, word: str) -> str:
        if word != "ok":
            raise ValueError(f"{word} is not a word")
        return word

    @field_validator("coded")
    @classmethod
    def _no_code(cls, code: str) -> str:
        if code:
            raise PydanticCustomError("wrong_code", "{code} is wrong", {"code": code})
        return code

    @model_validator(mode="after")
    def _key_is_long(self) -> "Settings":
        if self.key and len(self.key.get_secret_value()) < 3:
            raise ValueError(f"{self.key.get_secret_value()} is short")
        return self


def faults_of(values: object) -> dict[str, str]:
    faults = list(model_faults(Settings, values, "at", 0, what="setting"))
    assert len(faults) == len(dict(faults))
    return dict(faults)


@pytest.mark.parametrize(
    ("values", "faults"),
    [
        ({}, {}),
        ({"steps": 0, "word": "x"}, {"at.0.steps": "Input should be greater than or equal to 1", "at.0.word": "Value error, x is not a word"}),
        ({"step": 1}, {"at.0.step": "unknown setting; did you mean 'steps'?"}),
        ({"zzz": 1}, {"at.0.zzz": "unknown setting"}),
        ([], {"at.0": "must be a mapping"}),
        ({"either": "x"}, {"at.0.either": "Input should be a valid integer, unable to parse string as an integer, or: must be a mapping"}),
        ({"either": {"a": "x"}}, {"at.0.either.a": "Input should be a valid integer, unable to parse string as an integer"}),
        ({"shape": {"shape": "square"}}, {"at.0.shape.side": "required", "at.0.shape.shape": "Input should be 'circle'", "at.0.shape.radius": "required"}),
        ({"tagged": {"shape": "square"}}, {"at.0.tagged.side": "required"}),
        ({"tagged": {"shape": "line"}}, {"at.0.tagged": "Input tag 'line' found using 'shape' does not match any of the expected tags: 'square', 'circle'"}),
        ({"key": "ab"}, {"at.0": WITHHELD}),
        ({"coded": "ab"}, {"at.0.coded": "ab is wrong"}),
    ],
)  # fmt: skip
def test_each_problem_is_told_once_at_its_place(values: object, faults: JsonObject) -> None:
    assert faults_of(values) == faults


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("word", "hunter2", WITHHELD),
        ("coded", "hunter2", WITHHELD),
        ("url", "hunter2", WITHHELD),
        ("number", "hunter2", WITHHELD),
        ("steps", "hunter2", "Input should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_a_reason_that_may_show_an_environment_value_is_withheld(field: str, value: str, shown: str) -> None:
    assert faults_of({field: Expanded(value, "${X}")}) == {f"at.0.{field}": shown}


def test_a_tag_from_the_environment_is_withheld() -> None:
    assert faults_of({"tagged": {"shape": Expanded("hunter2", "${X}")}}) == {"at.0.tagged": WITHHELD}


def test_a_reason_that_quotes_the_secret_of_another_setting_is_withheld() -> None:
    assert faults_of({"word": "hunter2", "key": "hunter2"}) == {"at.0.word": WITHHELD}


def test_a_reason_that_concerns_no_secret_is_told() -> None:
    assert faults_of({"word": "x", "key": "hunter2"}) == {"at.0.word": "Value error, x is not a word"}


def test_one_error_lists_every_fault_once_with_the_file_in_front() -> None:
    faults = [Fault("a.b", "is wrong"), Fault("", "too long"), Fault("a.b", "is wrong")]

    error = config_error(faults, Path("t.yaml"))

    assert error.detail == "t.yaml: a.b: is wrong\nt.yaml: too long"
    assert error.extensions["errors"] == [
        {"pointer": "a.b", "detail": "is wrong"},
        {"pointer": "", "detail": "too long"},
    ]
    assert config_error(faults).detail == "a.b: is wrong\ntoo long"


def test_the_nearest_name_is_offered_unless_it_would_tell_an_environment_value() -> None:
    assert did_you_mean("polcy", ["weather", "policy"]) == "; did you mean 'policy'?"
    assert did_you_mean("zzz", ["weather", "policy"]) == ""
    assert did_you_mean(Expanded("polcy", "${X}"), ["weather", "policy"]) == ""
