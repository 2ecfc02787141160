"""Which hosts may be services: a registered URL is called by every client, with the token."""

from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address

_LOCAL_ENDINGS: Final = (".localhost", ".local", ".svc")
"""Names that no public name server answers for; clusters give names below `svc.cluster.local` to services."""


def is_never_a_service(address: Address) -> bool:
    """Say whether no service can be at an address: link-local, where clouds serve credentials, and no host's at all."""
    inner = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    real = inner or address
    return real.is_link_local or real.is_multicast or real.is_unspecified


def may_be_service(host: str, allowed: Collection[str]) -> bool:
    """Say whether a host may be registered.

    Loopback and private addresses may, and names without a dot or with a local ending. Others must be allowed.

    Args:
        host: name or address, without brackets.
        allowed: further hosts; one that starts with a dot stands for every name that ends so, and one with a slash for
            a network, such as `100.64.0.0/10`.
    """
    name = host.lower().rstrip(".")
    try:
        address = ip_address(name)
    except ValueError:
        local = "." not in name or name.endswith(_LOCAL_ENDINGS)
        return local or any(name == one or (one.startswith(".") and name.endswith(one)) for one in allowed)
    if is_never_a_service(address):
        return False
    networks = (ip_network(one, strict=False) for one in allowed if "/" in one)
    return address.is_loopback or address.is_private or name in allowed or any(address in one for one in networks)
