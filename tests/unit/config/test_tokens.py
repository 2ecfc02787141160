import os
import stat
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr

from rollmill.config.secret_values import MASK, secret_values, without_secrets
from rollmill.config.settings import ServiceSettings
from rollmill.config.tokens import Tokens, make_token_file, read_tokens, rotate_token_file, service_tokens
from rollmill.errors import ConfigError
from rollmill.testing import FakeClock


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    write(path, "first\n")
    return path


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def test_a_fixed_token_is_shown_and_accepted_and_nothing_else_is() -> None:
    tokens = Tokens("secret")

    assert tokens
    assert (tokens.shown, tokens.valid) == ("secret", ("secret",))
    assert tokens.accepts(b"Bearer secret")
    for wrong in (
        b"",
        b"secret",
        b"Bearer ",
        b"Bearer secret2",
        b"Bearer secre",
        b"bearer secret",
        "Bearer é".encode(),
    ):
        assert not tokens.accepts(wrong)


def test_without_a_token_there_are_none() -> None:
    assert not Tokens()
    assert Tokens().shown == ""
    assert not service_tokens(ServiceSettings(token=SecretStr("")))


def test_both_tokens_of_a_file_are_accepted_and_the_first_is_shown(file: Path) -> None:
    write(file, "new\n\nold\n")
    tokens = Tokens(file=file)

    assert tokens.shown == "new"
    assert [tokens.accepts(f"Bearer {one}".encode()) for one in ("new", "old", "older")] == [True, True, False]


def test_a_changed_file_is_noticed_within_a_second_and_at_once_by_a_call_that_is_about_to_be_refused(
    file: Path,
) -> None:
    clock = FakeClock()
    tokens = Tokens(file=file, clock=clock)
    assert tokens.shown == "first"
    write(file, "second\nfirst\n")

    assert tokens.shown == "first"
    assert tokens.accepts(b"Bearer second")
    assert tokens.shown == "second"
    write(file, "third\nsecond\n")
    clock.now += 1.0
    assert tokens.shown == "third"
    assert not tokens.accepts(b"Bearer first")


def test_rotation_keeps_the_former_token_valid_until_the_next_one(file: Path) -> None:
    rotate_token_file(file)
    new, old = read_tokens(file)
    rotate_token_file(file)

    assert (old, len(new)) == ("first", 43)
    assert read_tokens(file)[1] == new
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["token"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused_with_the_fix(file: Path, mode: int) -> None:
    file.chmod(mode)

    with pytest.raises(ConfigError, match=f"run: chmod 600 {file}"):
        _ = Tokens(file=file).shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("mode", "fine"), [(0o440, True), (0o444, False), (0o460, False)])
def test_a_file_of_another_owner_may_be_read_through_a_group_only(file: Path, mode: int, fine: bool) -> None:
    os.chown(file, 12345, 0)
    file.chmod(mode)

    if fine:
        assert Tokens(file=file).shown == "first"
    else:
        with pytest.raises(ConfigError, match="can be read by others"):
            read_tokens(file)


@pytest.mark.parametrize("text", ["", "\n \n", "two words", "é\n", "a\nb\nc\n"])
def test_a_file_without_one_or_two_tokens_is_refused(file: Path, text: str) -> None:
    write(file, text)

    with pytest.raises(ConfigError, match="holds"):
        _ = Tokens(file=file).valid


def test_a_missing_file_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rollmill token --init --file"):
        Tokens(file=tmp_path / "none").accepts(b"Bearer x")
    with pytest.raises(ConfigError, match="rollmill token --init --file"):
        rotate_token_file(tmp_path / "none")


def test_a_file_that_becomes_unusable_leaves_the_tokens_as_they_were(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = FakeClock()
    tokens = Tokens(file=file, clock=clock)
    assert tokens.shown == "first"
    for exists in (True, False):
        file.unlink()
        if exists:
            write(file, "public\n", 0o644)
        clock.now += 1.0
        assert tokens.shown == "first"
        assert tokens.accepts(b"Bearer first")
        assert not tokens.accepts(b"Bearer public")
    assert capsys.readouterr().err.count("token_file_unusable") == 1


def test_a_token_file_is_made_once_in_a_private_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "token"

    assert make_token_file(path)
    assert not make_token_file(path)
    assert len(read_tokens(path)[0]) == 43
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_place_where_no_file_can_be_made_is_told(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot make the token file"):
        make_token_file(file / "below")


def test_tokens_are_not_shown_by_accident(file: Path) -> None:
    tokens = Tokens(file=file)
    assert "first" not in f"{tokens!r} {tokens} {Tokens(tokens.shown)!r}"


class Engine(BaseModel):
    key: SecretBytes


class Nested(ServiceSettings):
    engines: list[Engine] = Field(default_factory=list)
    by_name: dict[str, SecretStr] = Field(default_factory=dict)
    plain: str = "plain-value"


def test_secrets_are_found_by_their_type_at_any_depth() -> None:
    settings = Nested(
        token=SecretStr("the-token"),
        session_secret=SecretStr("abc"),
        engines=[Engine(key=SecretBytes(b"bytes-key"))],
        by_name={"a": SecretStr("by-name")},
    )

    assert secret_values(settings) == ("the-token", "bytes-key", "by-name")  # `abc` is too short to blot out


def test_secrets_are_masked_as_they_are_and_as_json_writes_them() -> None:
    assert without_secrets('say "a\\"b" or a"b', ['a"b']) == f'say "{MASK}" or {MASK}'
