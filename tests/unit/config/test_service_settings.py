from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from rollmill.config.settings import ServiceSettings
from rollmill.errors import ConfigError


class OvenSettings(ServiceSettings):
    degrees: float = 180.0
    trays: list[int] | None = None
    labels: dict[str, str] | None = None
    convection: bool = False


def test_the_defaults_make_a_service_that_needs_nothing() -> None:
    settings = ServiceSettings.from_environment({})

    assert settings == ServiceSettings()
    assert settings.name == ""
    assert settings.token is None


def test_every_setting_can_come_from_its_variable() -> None:
    settings = OvenSettings.from_environment(
        {
            "ROLLMILL_NAME": "oven",
            "ROLLMILL_DEGREES": "200",
            "ROLLMILL_TRAYS": "[1, 2]",
            "ROLLMILL_LABELS": '{"a": "b"}',
            "ROLLMILL_CONVECTION": "true",
            "ROLLMILL_TOKEN": "hunter2",
        }
    )

    assert settings == OvenSettings(
        name="oven", degrees=200.0, trays=[1, 2], labels={"a": "b"}, convection=True, token=SecretStr("hunter2")
    )


def test_variables_that_are_no_settings_are_passed_over() -> None:
    assert ServiceSettings.from_environment({"ROLLMILL_DEGREES": "200", "NAME": "x"}) == ServiceSettings()


def test_the_environment_of_the_process_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLMILL_NAME", "oven")

    assert ServiceSettings.from_environment().name == "oven"
    assert ServiceSettings.from_environment({}).name == ""


def test_a_value_can_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2\n")

    settings = ServiceSettings.from_environment({"ROLLMILL_SESSION_SECRET_FILE": str(tmp_path / "secret")})

    assert settings.session_secret == SecretStr("hunter2")


def test_a_variable_wins_over_its_file_and_over_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"name": "from-file", "degrees": 100}')
    (tmp_path / "name").write_text("from-name-file")
    environ = {"ROLLMILL_SETTINGS_FILE": str(tmp_path / "settings.json")}

    assert OvenSettings.from_environment(environ) == OvenSettings(name="from-file", degrees=100)
    environ["ROLLMILL_NAME_FILE"] = str(tmp_path / "name")
    assert OvenSettings.from_environment(environ) == OvenSettings(name="from-name-file", degrees=100)
    environ["ROLLMILL_NAME"] = "from-variable"
    assert OvenSettings.from_environment(environ) == OvenSettings(name="from-variable", degrees=100)


def test_every_wrong_value_is_listed_in_one_error() -> None:
    with pytest.raises(ConfigError) as caught:
        OvenSettings.from_environment(
            {"ROLLMILL_DEGREES": "hot", "ROLLMILL_NAME": "a b", "ROLLMILL_MAX_IN_FLIGHT": "0"}
        )

    pointers = {fault["pointer"] for fault in caught.value.extensions["errors"]}
    assert pointers == {"environment.degrees", "environment.name", "environment.max_in_flight"}
    assert all(pointer in caught.value.detail for pointer in pointers)


def test_an_unknown_setting_is_named(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"degres": 100}')

    with pytest.raises(ConfigError) as caught:
        OvenSettings.from_environment({"ROLLMILL_SETTINGS_FILE": str(tmp_path / "settings.json")})

    assert caught.value.detail == "environment.degres: unknown setting"


def test_a_wrong_value_is_never_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        OvenSettings.parse({"token": ["hunter2"], "degrees": "hunter2"}, where="services.oven.settings")

    assert "hunter2" not in f"{caught.value} {caught.value.extensions}"
    assert caught.value.extensions["errors"][0]["pointer"] == "services.oven.settings.token"


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "No such file or directory"), ("[1]", "must hold a JSON object"), ("{", "unexpected end of data")],
)
def test_a_settings_file_that_cannot_be_used_is_told_with_its_path(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ConfigError) as caught:
        ServiceSettings.from_environment({"ROLLMILL_SETTINGS_FILE": str(path)})

    assert str(path) in caught.value.detail
    assert problem in caught.value.detail


def test_a_missing_value_file_is_told_with_its_variable() -> None:
    with pytest.raises(ConfigError, match=r"ROLLMILL_SESSION_SECRET_FILE=/nowhere/secret: No such file or directory"):
        ServiceSettings.from_environment({"ROLLMILL_SESSION_SECRET_FILE": "/nowhere/secret"})


def test_a_value_that_looks_like_json_but_is_not_is_told_with_its_variable() -> None:
    with pytest.raises(ConfigError, match="ROLLMILL_TRAYS: not valid JSON"):
        OvenSettings.from_environment({"ROLLMILL_TRAYS": "[1, hunter2"})


def test_secrets_are_not_shown_and_settings_cannot_be_changed() -> None:
    settings = ServiceSettings(token=SecretStr("hunter2"), session_secret=SecretStr("hunter2"))

    assert "hunter2" not in repr(settings)
    with pytest.raises(ValidationError):
        settings.name = "x"  # type: ignore[misc]


@pytest.mark.parametrize("degrees", ["nan", "inf", "-inf"])
def test_numbers_must_be_finite(degrees: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.degrees"):
        OvenSettings.from_environment({"ROLLMILL_DEGREES": degrees})
