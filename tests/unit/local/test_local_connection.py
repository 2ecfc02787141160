from pathlib import Path

import pytest

from rollmill.errors import ConfigError
from rollmill.local.connection import deployment_tokens, find_connection, is_loopback
from rollmill.local.ports import DEFAULT_HEAD_URL
from rollmill.local.state import Deployment, StateDir


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path / "home")


def running_at(state: StateDir, url: str) -> None:
    state.save(Deployment(topology="t.yaml", head_url=url, launcher_pid=1, launcher_started="x"))


def test_with_nothing_known_it_is_the_default_port_without_a_token(state: StateDir) -> None:
    assert find_connection(state=state, environ={}) == (DEFAULT_HEAD_URL, "", None)
    assert not state.path.exists()


def test_the_head_is_the_one_given_else_of_the_environment_else_the_one_started_here(state: StateDir) -> None:
    running_at(state, "http://127.0.0.1:5000")
    environ = {"ROLLMILL_HEAD_URL": "http://elsewhere:1/"}

    assert find_connection("http://given:2/", state=state, environ=environ).head_url == "http://given:2"
    assert find_connection(state=state, environ=environ).head_url == "http://elsewhere:1"
    assert find_connection(state=state, environ={}).head_url == "http://127.0.0.1:5000"


@pytest.mark.parametrize("url", ["localhost:11000", "ftp://x", "http://", "nonsense"])
def test_what_is_no_url_is_refused_with_an_example(state: StateDir, url: str) -> None:
    with pytest.raises(ConfigError, match="write it like http"):
        find_connection(url, state=state, environ={})


def test_the_folders_token_is_shown_to_this_machine_and_to_the_own_deployment_only(state: StateDir) -> None:
    token = state.token()
    running_at(state, "http://10.0.0.5:11000")

    assert find_connection("http://localhost:7", state=state, environ={}).token == token
    assert find_connection("http://[::1]:7", state=state, environ={}).token == token
    assert find_connection(state=state, environ={}).token == token
    assert find_connection("http://10.0.0.6:11000", state=state, environ={}).token == ""


def test_a_token_of_the_environment_wins_everywhere(state: StateDir, tmp_path: Path) -> None:
    state.token()
    file = tmp_path / "token"
    file.write_text("from-file\n")
    file.chmod(0o600)

    assert find_connection("http://far:1", state=state, environ={"ROLLMILL_TOKEN": "given"}).token == "given"
    assert find_connection(state=state, environ={"ROLLMILL_TOKEN_FILE": str(file)}).token == "from-file"
    assert deployment_tokens(state, {"ROLLMILL_TOKEN": "given"}).shown == "given"
    assert deployment_tokens(state, {}).shown == state.token()


def test_a_token_file_that_cannot_be_read_is_an_error_that_names_it(state: StateDir) -> None:
    with pytest.raises(ConfigError, match=r"token file /none: No such file.* rollmill token --init --file /none"):
        find_connection(state=state, environ={"ROLLMILL_TOKEN_FILE": "/none"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_only_this_machine_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_others_may_reach_every_other_address(host: str) -> None:
    assert not is_loopback(host)
