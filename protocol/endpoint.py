"""Where gateway and workers meet: `ipc://PATH` on one host, `tcp://HOST:PORT` between hosts.

An ipc socket is guarded by the permissions of its folder, a tcp one by CURVE keys. So a tcp
endpoint without keys is refused, whatever its address.
"""

import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from protocol.errors import ConfigError
from protocol.filenames import is_text

WORKERS_SOCKET = "workers.sock"
ADMIN_SOCKET = "admin.sock"
"""Names in the runtime directory: where workers dial, and where `llamapool status` asks."""
UNIX_SUFFIX = ".sock"
"""An address of `host` that ends so is the path of a Unix socket."""
UNIX_PATH_MAX = 107
"""Bytes of a path in Linux's `sockaddr_un`, without the final NUL."""
_ANY = ("*", "0.0.0.0", "::")  # noqa: S104 # only recognised here
_TCP = re.compile(
    r"tcp://(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._*-]+)):(?P<port>\d+|\*)"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint in its parts."""

    text: str
    host: str = ""
    """Address, name or interface of a tcp endpoint, without brackets; empty for ipc."""
    port: int = 0
    """0: the system chooses one."""

    @property
    def is_tcp(self) -> bool:
        """Whether it can be reached from other hosts."""
        return bool(self.host)

    @property
    def takes_ipv6(self) -> bool:
        """Whether its socket must speak IPv6: all but a plain IPv4 address may need it."""
        try:
            return ipaddress.ip_address(self.host).version == 6
        except ValueError:
            return self.is_tcp


def read_endpoint(text: str, key: str, *, is_bound: bool) -> Endpoint:
    """Split an endpoint; raises `ConfigError` that names `key` and the fault."""
    if text.startswith("ipc://"):
        return Endpoint(_ipc_path(text, key) and text)
    match = _TCP.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{key} '{text}': must be ipc://PATH, tcp://HOST:PORT or tcp://[IPV6]:PORT"
        )
    host = match["ipv6"] or match["host"]
    if match["ipv6"]:
        _check_ipv6(text, host, key)
    port = 0 if match["port"] == "*" else int(match["port"])
    if port > 65535 or (port == 0 and not is_bound):
        raise ConfigError(f"{key} '{text}': the port must be 1 to 65535")
    if host in _ANY and not is_bound:
        raise ConfigError(f"{key} '{text}': name the gateway's address; {host} is no place to dial")
    return Endpoint(text, host, port)


def bound(endpoints: Sequence[str], *, has_keys: bool) -> tuple[Endpoint, ...]:
    """Check where a gateway is to listen for workers; raises `ConfigError`."""
    found = tuple(read_endpoint(endpoint, "bind", is_bound=True) for endpoint in endpoints)
    for read in found:
        if read.is_tcp and not has_keys:
            raise ConfigError(
                f"bind '{read.text}': tcp needs keys. Make one with `llamapool keygen DIR`, then "
                "set --gateway-curve-key FILE.key and --worker-keys FOLDER, or use ipc://PATH"
            )
    return found


def dialled(endpoints: Sequence[str], *, has_keys: bool) -> tuple[Endpoint, ...]:
    """Check what a worker is to dial; raises `ConfigError`."""
    found = tuple(read_endpoint(endpoint, "connect", is_bound=False) for endpoint in endpoints)
    for read in found:
        if read.is_tcp and not has_keys:
            raise ConfigError(
                f"connect '{read.text}': tcp needs keys. Make one with `llamapool keygen DIR`, "
                "then set --worker-curve-key FILE.key and --gateway-keys FILE.pub, or use ipc://PATH"
            )
    return found


def gateway_endpoint(endpoint: str, index: int) -> str:
    """Return what the gateway of this index binds where `endpoint` is configured.

    Gateway 0 binds `endpoint` itself; the others `ipc://NAME-1.sock`, or the following ports of
    tcp. Raises `ConfigError`.
    """
    if index == 0:
        return endpoint
    if endpoint.startswith("ipc://"):
        path = PurePath(endpoint.removeprefix("ipc://"))
        return f"ipc://{path.with_name(f'{path.stem}-{index}{path.suffix}')}"
    head, _, port = endpoint.rpartition(":")
    if not head.startswith("tcp:") or not port.isdigit() or not 0 < int(port) + index < 65536:
        raise ConfigError(f"gateway.bind: {endpoint}: several gateways need a path or a port each")
    return f"{head}:{int(port) + index}"


def _ipc_path(text: str, key: str) -> str:
    path = text.removeprefix("ipc://")
    if not path:
        raise ConfigError(f"{key} '{text}': must be ipc://PATH")
    if path.startswith("@"):
        raise ConfigError(f"{key} '{text}': any user can reach an abstract socket; name a path")
    if not is_text(path):
        raise ConfigError(f"{key} '{text}': is no UTF-8 text")
    if len(path.encode()) > UNIX_PATH_MAX:
        raise ConfigError(
            f"{key} '{text}': longer than the {UNIX_PATH_MAX} bytes of a socket's path"
        )
    return path


def _check_ipv6(text: str, host: str, key: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise ConfigError(f"{key} '{text}': {error}") from error


def check_folder(path: Path) -> None:
    """Raise `ConfigError` if others could put a socket of theirs into a runtime directory."""
    if path.stat().st_mode & 0o022:
        raise ConfigError(f"runtime_dir {path} is writable by others: chmod 0700 it")


def remove_sockets(endpoints: Sequence[str]) -> None:
    """Remove the paths of ipc endpoints, which ZeroMQ leaves behind."""
    for endpoint in endpoints:
        if endpoint.startswith("ipc://"):
            with suppress(OSError):
                Path(endpoint.removeprefix("ipc://")).unlink()
