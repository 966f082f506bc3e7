"""Which hosts media may be fetched from, and at which addresses. Pure.

The client chooses the URL, so it could make this server reach hosts of the internal network (SSRF).
Therefore the host must match a pattern, and each address that it resolves to must be public or lie
in a network that a pattern names: `10.0.0.0/8` allows private addresses, `*` does not.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from protocol.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = {"http": 80, "https": 443}
MAX_URL = 4096
"""Characters of a URL."""

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_ANY_PORT = -1
"""Port of a rule that ends in `:*`."""


@dataclass(frozen=True, slots=True)
class UrlTarget:
    """The parts of a URL that a connection needs."""

    scheme: str
    host: str
    """Name in lower case, or IP address without brackets."""
    port: int
    path: str
    """Path and query, as in the request line."""

    @property
    def authority(self) -> str:
        """Return the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(url: str) -> UrlTarget:
    """Parse a URL; raises ValueError with the reason."""
    # Before urlsplit, which drops some characters silently and would read a different URL.
    if len(url) > MAX_URL or not re.fullmatch(r"[\x21-\x5b\x5d-\x7e]+", url):
        raise ValueError(f"must be ASCII without spaces, at most {MAX_URL} characters")
    parts = urlsplit(url)
    if parts.scheme not in PORTS:
        raise ValueError("must be http or https")
    if "@" in parts.netloc:
        raise ValueError("must not hold a user or a password")
    host = (parts.hostname or "").removesuffix(".")
    if not _NAME.fullmatch(host) and _address(host) is None:
        raise ValueError("has no host")
    port = PORTS[parts.scheme] if parts.port is None else parts.port
    query = f"?{parts.query}" if parts.query else ""
    return UrlTarget(parts.scheme, host, port, (parts.path or "/") + query)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One pattern: a name or a network, and a port."""

    name: str = ""
    network: Network | None = None
    port: int | None = None
    """None is the default port of the scheme."""

    def fits(self, target: UrlTarget) -> bool:
        usual = PORTS[target.scheme]
        if target.port != (usual if self.port is None else self.port) and self.port != _ANY_PORT:
            return False
        address = _address(target.host)
        if self.network is not None:
            return address is not None and _unmapped(address) in self.network
        if self.name.startswith("*."):
            return address is None and target.host.endswith(self.name[1:])
        return self.name in ("*", target.host)


class AllowedUrls:
    """Patterns of the configuration: `HOST`, `*.DOMAIN`, `*`, `ADDRESS` or `NETWORK/BITS`,
    followed by `:PORT` or `:*`; without a port, the default port of the scheme.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        """Read the patterns; raises `ConfigError` with the one that is malformed."""
        self._rules = [_rule(pattern.lower()) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def takes_host(self, target: UrlTarget) -> bool:
        """Return whether the host of a URL matches a pattern."""
        return any(rule.fits(target) for rule in self._rules)

    def takes_address(self, text: str, target: UrlTarget) -> bool:
        """Return whether a URL may lead to this resolved address."""
        address = _address(text)
        if address is None:
            return False
        address = _unmapped(address)
        named = [rule for rule in self._rules if rule.network and address in rule.network]
        if any(rule.port in (None, _ANY_PORT, target.port) for rule in named):
            return True  # without a port of its own, the port of the host's pattern counts
        return all(_is_public(each) for each in (address, *_embedded(address)))


def _rule(pattern: str) -> _Rule:
    host, port = pattern, ""
    if match := re.fullmatch(r"(\[.*\](?:/\d+)?|[^:]*):(\d+|\*)", pattern):
        host, port = match[1], match[2]
    number = _ANY_PORT if port == "*" else int(port) if port else None
    host = host.replace("[", "").replace("]", "")
    try:
        return _Rule(network=ipaddress.ip_network(host), port=number)
    except ValueError as error:
        if host == "*" or _NAME.fullmatch(host.removeprefix("*.")):
            return _Rule(name=host, port=number)
        problem = "must be HOST, *.DOMAIN, *, ADDRESS or NETWORK/BITS, and :PORT if it is another"
        raise ConfigError(f"--media-url-allow {pattern}: {problem}") from error


def _address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address in ::ffff:a.b.c.d or in a NAT64 address."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def _embedded(address: Address) -> list[Address]:
    """Return the IPv4 addresses to which a 6to4 or NAT64 gateway would forward this one."""
    if not isinstance(address, ipaddress.IPv6Address):
        return []
    found: list[Address] = [address.sixtofour] if address.sixtofour is not None else []
    return [*found, *(address.teredo or ())]


def _is_public(address: Address) -> bool:
    is_site = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not (address.is_multicast or address.is_reserved or is_site)
