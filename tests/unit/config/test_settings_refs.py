from typing import Annotated

from pydantic import BaseModel, Field, SecretBytes, SecretStr

from rollmill.config.settings import ServiceSettings
from rollmill.config.settings_refs import Reference, ServiceRef, references, secret_paths, texts


class Judge(BaseModel):
    model: Annotated[str, ServiceRef("model")]
    key: SecretStr | None = None


class ManySettings(ServiceSettings):
    model: Annotated[str, ServiceRef("model")] = "policy"
    backup: Annotated[str, ServiceRef("model")] | None = None
    resources: Annotated[list[str], ServiceRef("resources")] = Field(default_factory=list)
    others: list[Annotated[str, ServiceRef()]] = Field(default_factory=list)
    by_name: dict[str, Annotated[str, ServiceRef("agent")]] = Field(default_factory=dict)
    judge: Judge | None = None
    judges: list[Judge] = Field(default_factory=list)
    pair: tuple[Annotated[str, ServiceRef("model")], ...] = ()
    plain: str = "weather"
    password: SecretBytes | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict)


def test_references_are_found_wherever_they_are() -> None:
    values = {
        "model": "a",
        "backup": "b",
        "resources": ["c", "d"],
        "others": ["e"],
        "by_name": {"x": "f"},
        "judge": {"model": "g"},
        "judges": [{"model": "h"}],
        "pair": ["i", "j"],
        "plain": "k",
    }

    assert references(ManySettings, values) == [
        Reference(("model",), "a", "model"),
        Reference(("backup",), "b", "model"),
        Reference(("resources", 0), "c", "resources"),
        Reference(("resources", 1), "d", "resources"),
        Reference(("others", 0), "e", None),
        Reference(("by_name", "x"), "f", "agent"),
        Reference(("judge", "model"), "g", "model"),
        Reference(("judges", 0, "model"), "h", "model"),
        Reference(("pair", 0), "i", "model"),
        Reference(("pair", 1), "j", "model"),
    ]


def test_a_reference_that_is_a_default_counts() -> None:
    assert references(ManySettings, {}) == [Reference(("model",), "policy", "model")]


def test_an_empty_or_null_reference_names_nothing() -> None:
    assert references(ManySettings, {"model": "", "backup": None}) == []


def test_values_of_wrong_types_are_passed_over() -> None:
    wrong = {"model": 1, "backup": [2], "others": "x", "by_name": [3], "judge": "y", "judges": {"z": 1}}

    assert references(ManySettings, wrong) == []


def test_secrets_are_found_wherever_they_are() -> None:
    values = {
        "token": "a",
        "password": "b",
        "headers": {"x": "c"},
        "judge": {"model": "m", "key": "d"},
        "judges": [{"model": "m"}, {"model": "m", "key": "e"}],
        "plain": "f",
    }

    assert secret_paths(ManySettings, values) == {
        ("token",),
        ("password",),
        ("headers", "x"),
        ("judge", "key"),
        ("judges", 1, "key"),
    }


def test_texts_are_found_at_any_depth() -> None:
    assert list(texts({"a": ["x", {"b": "y"}], "c": 1})) == [(("a", 0), "x"), (("a", 1, "b"), "y")]
