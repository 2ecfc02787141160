import ipaddress
import socket

import pytest

from rollmill.errors import ConfigError
from rollmill.local.sockets import base_url, bound_address, listen


def test_a_call_can_be_made_as_soon_as_the_socket_is_there() -> None:
    with listen("127.0.0.1", 0) as listener:
        host, port = bound_address(listener)
        with socket.create_connection((host, port), timeout=5):
            assert port > 0


def test_a_port_in_use_is_told_with_the_option_that_changes_it() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = bound_address(listener)[1]
        with pytest.raises(ConfigError, match=rf"port {port} of 127.0.0.1 is in use; .*--head-port"):
            listen("127.0.0.1", port, option="--head-port")


def test_a_port_is_free_again_right_after_its_socket_closed() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = bound_address(listener)[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            accepted, _ = listener.accept()
            accepted.close()
    with listen("127.0.0.1", port) as again:
        assert bound_address(again)[1] == port


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host!"])
def test_an_address_that_is_not_ours_is_told_with_the_option_that_changes_it(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        listen(host, 0)


def test_a_url_names_the_host_it_listens_on() -> None:
    assert base_url("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert base_url("::1", 80) == "http://[::1]:80"


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", ""])
def test_a_socket_on_all_interfaces_is_given_out_under_one_real_address(wildcard: str) -> None:
    url = base_url(wildcard, 80)

    host = url.removeprefix("http://").rpartition(":")[0].strip("[]")
    assert not ipaddress.ip_address(host).is_unspecified


def test_the_address_given_out_is_the_one_from_which_the_head_is_reached() -> None:
    assert base_url("0.0.0.0", 80, head_url="http://127.0.0.1:11000") == "http://127.0.0.1:80"
