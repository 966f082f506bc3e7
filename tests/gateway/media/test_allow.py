"""Where media may be fetched from: hosts by pattern, addresses by what they are."""

import pytest

from gateway.media.allow import AllowedUrls, UrlTarget, read_url
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://A.test", UrlTarget("http", "a.test", 80, "/")),
        ("https://a.test./x%20y?q=1#f", UrlTarget("https", "a.test", 443, "/x%20y?q=1")),
        ("http://a.test:8000/", UrlTarget("http", "a.test", 8000, "/")),
        ("http://[::1]:80/x", UrlTarget("http", "::1", 80, "/x")),
    ],
)
def test_a_url_is_taken_apart(url: str, target: UrlTarget) -> None:
    assert read_url(url) == target


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.test/x",
        "file:///x",
        "http:///x",
        "http://",
        "http://a b.test/",
        "http://a.test/ü",
        "http://a.test\\@b.test/",
        "http://a.test@b.test/",
        "http://user:password@a.test/",
        "http://a.test:99999/",
        "http://a.test:x/",
        "http://[::1/",
        "http://a.test\r\nHost: b.test/",
        "http://a..test/",
        "http://a.test/" + "x" * 5000,
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_none(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_url(url)


@pytest.mark.parametrize(
    ("pattern", "url", "fits"),
    [
        ("a.test", "http://a.test/", True),
        ("A.test", "https://a.test/", True),
        ("a.test", "http://a.test:81/", False),
        ("a.test", "http://b.a.test/", False),
        ("a.test", "http://a.test.evil/", False),
        ("a.test:81", "http://a.test:81/", True),
        ("a.test:81", "http://a.test/", False),
        ("a.test:*", "http://a.test:99/", True),
        ("*.a.test", "http://b.a.test/", True),
        ("*.a.test", "http://a.test/", False),
        ("*.a.test", "http://ba.test/", False),
        ("*", "http://x.test/", True),
        ("*", "http://1.2.3.4/", True),
        ("*", "http://x.test:81/", False),
        ("10.0.0.0/8", "http://10.1.2.3/", True),
        ("10.0.0.0/8", "http://11.1.2.3/", False),
        ("10.0.0.0/8", "http://a.test/", False),
        ("127.0.0.1:81", "http://127.0.0.1:81/", True),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]/", True),
        ("[::1]:81", "http://[::1]:81/", True),
        ("::1", "http://[::1]/", True),
        ("fd00::/8", "http://[fd00::1]/", True),
    ],
)
def test_a_pattern_names_hosts_and_ports(pattern: str, url: str, fits: bool) -> None:
    assert AllowedUrls([pattern]).takes_host(read_url(url)) is fits


URL = read_url("http://a.test/x")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "::", "::1", "fe80::1"),
        *("fe80::1%eth0", "fd00::1", "fec0::1", "ff02::1", "::ffff:10.0.0.1", "2002:a00:1::1"),
        *("64:ff9b::10.0.0.1", "64:ff9b::a00:1", "2001:0:a00:1::1", "nonsense"),
    ],
)
def test_an_address_that_is_not_public_needs_a_pattern_of_its_own(address: str) -> None:
    assert not AllowedUrls(["*", "a.test"]).takes_address(address, URL)


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_a_public_address_needs_none(address: str) -> None:
    assert AllowedUrls(["a.test"]).takes_address(address, URL)


def test_a_network_in_a_pattern_allows_its_addresses_to_every_host() -> None:
    allowed = AllowedUrls(["a.test", "10.0.0.0/8"])
    assert allowed.takes_address("10.9.9.9", URL)
    assert allowed.takes_address("::ffff:10.9.9.9", URL)
    assert not allowed.takes_address("11.0.0.1/8", URL)
    assert not allowed.takes_address("192.168.0.1", URL)


def test_a_port_of_an_address_holds_for_every_host_that_leads_there() -> None:
    allowed = AllowedUrls(["*:*", "10.1.2.3:8000", "10.1.2.4:*"])
    assert allowed.takes_address("10.1.2.3", read_url("http://a.test:8000/x"))
    assert not allowed.takes_address("10.1.2.3", URL)
    assert not allowed.takes_address("10.1.2.3", read_url("http://a.test:22/x"))
    assert allowed.takes_address("10.1.2.4", read_url("http://a.test:22/x"))


@pytest.mark.parametrize("pattern", ["http://a.test", "a.*", "10.0.0.1/8", "a.test:x", "", "a b"])
def test_a_pattern_that_says_nothing_ends_the_start(pattern: str) -> None:
    with pytest.raises(ConfigError, match="--media-url-allow"):
        AllowedUrls([pattern])


def test_without_patterns_nothing_is_allowed() -> None:
    assert not AllowedUrls([])
    assert not AllowedUrls([]).takes_host(read_url("http://a.test/"))
