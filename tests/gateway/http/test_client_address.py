"""Whose request it is behind proxies, and which addresses are one client."""

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.origin.client_address import TrustedProxies, tenant_of
from protocol.errors import ConfigError


def scope(peer: str | None, *headers: tuple[str, str]) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"client": (peer, 1234) if peer is not None else None, "headers": raw}


def address(peer: str | None, *values: str, proxies: tuple[str, ...] = ("10.0.0.0/8",)) -> str:
    headers = [("X-Forwarded-For", value) for value in values]
    return TrustedProxies(proxies).address(scope(peer, *headers))


def test_nobody_is_trusted_by_default() -> None:
    headers = ("X-Forwarded-For", "6.6.6.6"), ("Forwarded", "for=6.6.6.6")
    assert TrustedProxies().address(scope("10.0.0.1", *headers)) == "10.0.0.1"


@pytest.mark.parametrize(
    ("peer", "values", "expected"),
    [
        ("1.2.3.4", ("6.6.6.6",), "1.2.3.4"),
        ("10.0.0.1", (), "10.0.0.1"),
        ("10.0.0.1", ("1.2.3.4",), "1.2.3.4"),
        ("10.0.0.1", ("6.6.6.6, 1.2.3.4",), "1.2.3.4"),
        ("10.0.0.1", ("6.6.6.6, 1.2.3.4, 10.0.0.2",), "1.2.3.4"),
        ("10.0.0.1", ("6.6.6.6", "1.2.3.4", "10.0.0.2"), "1.2.3.4"),
        ("10.0.0.1", ("10.0.0.3",), "10.0.0.3"),
        ("10.0.0.1", ("1.2.3.4:5678",), "1.2.3.4"),
        ("10.0.0.1", ("[2001:db8::1]:443",), "2001:db8::1"),
        ("10.0.0.1", ("2001:db8::1",), "2001:db8::1"),
        ("::ffff:10.0.0.1", ("::ffff:1.2.3.4",), "1.2.3.4"),
        ("10.0.0.1", ("6.6.6.6, unknown",), "10.0.0.1"),
        ("10.0.0.1", ("6.6.6.6, ",), "10.0.0.1"),
        ("10.0.0.1", ("6.6.6.6, \xff",), "10.0.0.1"),
        (None, ("1.2.3.4",), ""),
    ],
)
def test_the_address_is_read_from_the_right(
    peer: str | None, values: tuple[str, ...], expected: str
) -> None:
    assert address(peer, *values) == expected


def test_the_peer_of_a_unix_socket_can_be_trusted() -> None:
    assert address(None, "6.6.6.6, 1.2.3.4", proxies=("unix",)) == "1.2.3.4"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("for=6.6.6.6, for=1.2.3.4;proto=https;by=10.0.0.1", "1.2.3.4"),
        ('for=6.6.6.6, proto=http; For="[2001:db8::1]:4711"', "2001:db8::1"),
        ("for=6.6.6.6, for=_hidden", "10.0.0.1"),
        ("for=6.6.6.6, for=unknown", "10.0.0.1"),
        ('for=6.6.6.6, host="a, for=7.7.7.7"', "10.0.0.1"),
        ("for=6.6.6.6, nonsense", "10.0.0.1"),
    ],
)
def test_forwarded_is_read_only_if_it_is_the_proxies_header(value: str, expected: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"], "forwarded")
    both = ("Forwarded", value), ("X-Forwarded-For", "7.7.7.7")
    assert proxies.address(scope("10.0.0.1", *both)) == expected
    plain = TrustedProxies(["10.0.0.0/8"])
    assert plain.address(scope("10.0.0.1", ("Forwarded", "for=6.6.6.6"))) == "10.0.0.1"


@given(st.text(max_size=60), st.booleans())
def test_what_a_client_writes_never_gives_it_another_address(text: str, is_standard: bool) -> None:
    """Whatever it sends, a proxy appends the address that it has seen."""
    header, seen = ("forwarded", "for=1.2.3.4") if is_standard else ("x-forwarded-for", "1.2.3.4")
    proxies = TrustedProxies(["10.0.0.0/8"], header)
    asked = scope("10.0.0.1", (header, f"{text}, {seen}"))
    assert proxies.address(asked) == "1.2.3.4"


def test_a_network_that_is_none_ends_the_start() -> None:
    for name in ("proxy.example", "10.0.0.1/8", ""):
        with pytest.raises(ConfigError, match="trusted_proxies"):
            TrustedProxies([name])


def test_a_subscribers_ipv6_network_is_one_tenant() -> None:
    assert tenant_of("2001:db8:1:2::1") == tenant_of("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert tenant_of("2001:db8:1:3::1") != tenant_of("2001:db8:1:2::1")
    assert tenant_of("::ffff:1.2.3.4") == tenant_of("1.2.3.4") == "1.2.3.4"
    assert tenant_of("fe80::1%eth0") == "fe80::/64"
    assert tenant_of("") == ""


@given(st.ip_addresses())
def test_every_address_has_a_tenant(
    found: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert tenant_of(str(found))


def test_only_the_nearest_addresses_of_a_long_header_count() -> None:
    many = ", ".join(["6.6.6.6", *(f"10.1.{i // 256}.{i % 256}" for i in range(3000))])
    assert address("10.0.0.1", many) == "10.1.11.152", "the thirty-second from the right"
    assert address("10.0.0.1", ", ".join(["1.2.3.4", *["10.0.0.9"] * 31])) == "1.2.3.4"
