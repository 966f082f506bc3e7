"""The client's address behind proxies: the one that the outermost trusted proxy has reported.

Pure. Proxies append to these headers, so what the client itself wrote is on the left. They are read
from the right, up to the first address that does not belong to a trusted proxy.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator
from itertools import islice

from starlette.types import Scope

from protocol.errors import ConfigError

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_HOPS = 32
"""A client may write thousands of addresses that look like proxies; each takes 20 us."""
UNIX = "unix"
"""Name for peers on Unix sockets, which have no address."""

_PAIR = r'[!#$%&\'*+.^_`|~0-9A-Za-z-]+=(?:"[^"\\]*"|[^";,\s]*)'
_ELEMENT = re.compile(rf"{_PAIR}(?:\s*;\s*{_PAIR})*")
_FOR = re.compile(r'(?:^|;)\s*for=(?:"([^"]*)"|([^";\s]*))', re.IGNORECASE)
_SUBSCRIBER_BITS = 64
"""Leading bits of an IPv6 address that identify a subscriber; one client owns the rest."""


class TrustedProxies:
    """Networks of proxies whose headers are trusted; none by default."""

    def __init__(self, names: Iterable[str] = (), header: str = "x-forwarded-for") -> None:
        """Read the networks; raises `ConfigError` with a name that is not a network."""
        names = tuple(names)
        self._takes_unix = UNIX in names
        self._networks = [_network(name) for name in names if name != UNIX]
        self._header = header.encode()
        self._reads = _forwarded if header == "forwarded" else _plain

    def address(self, scope: Scope) -> str:
        """Return the client's address; empty if it has none, as over a Unix socket."""
        client = scope.get("client")
        address = str(client[0]) if client else ""
        if not self._trusts(address):
            return address
        for hop in islice(self._hops(scope), _MAX_HOPS):
            found = _address(hop)
            if found is None:
                break
            address = str(found)
            if not self._trusts(address):
                break
        return address

    def _hops(self, scope: Scope) -> Iterator[str]:
        """Yield the addresses that proxies have reported, the nearest first."""
        for name, value in reversed(scope["headers"]):
            if name == self._header:
                for element in reversed(value.decode("latin-1").split(",")):
                    yield self._reads(element.strip())

    def _trusts(self, address: str) -> bool:
        if not address:
            return self._takes_unix
        found = _address(address)
        return found is not None and any(found in network for network in self._networks)


def tenant_of(address: str) -> str:
    """Return the tenant of an address: for IPv6 the subscriber's /64 network."""
    found = _address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, _SUBSCRIBER_BITS), strict=False))
    return str(found) if found is not None else address


def _plain(element: str) -> str:
    """Read one address of X-Forwarded-For, which may have a port."""
    if element.count(":") == 1:  # IPv4 with a port; IPv6 has more colons
        element = element.partition(":")[0]
    return element.partition("]")[0].removeprefix("[")


def _forwarded(element: str) -> str:
    """Read one element of Forwarded (RFC 7239); empty if it is malformed or an obfuscated name."""
    if not _ELEMENT.fullmatch(element):
        return ""
    found = _FOR.search(element)
    return _plain(found[1] or found[2] or "") if found else ""


def _address(text: str) -> _Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _network(name: str) -> _Network:
    try:
        return ipaddress.ip_network(name)
    except ValueError as error:
        message = f"trusted_proxies '{name}': must be an address, NETWORK/BITS, or {UNIX}: {error}"
        raise ConfigError(message) from error
