"""The sockets that the gateways listen on: addresses, and paths of Unix sockets.

They are bound before anything else starts, so that a port in use is noticed at once. Whoever binds
them keeps them: `llamapool serve` passes them to its gateways, so that connections wait in the
backlog while no gateway runs.
"""

import errno
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from protocol.config.config import GatewayConfig
from protocol.endpoint import UNIX_SUFFIX
from protocol.errors import ConfigError
from protocol.filenames import expanded, is_file
from protocol.process import inherited

BACKLOG = 2048
"""Connections that wait while no gateway accepts; Linux cuts it to `net.core.somaxconn`."""
_TCP_OPTIONS = {
    socket.TCP_KEEPIDLE: 60,
    socket.TCP_KEEPINTVL: 15,
    socket.TCP_KEEPCNT: 4,
    # Without it Hypercorn would wait without limit for a client that has stopped reading.
    socket.TCP_USER_TIMEOUT: 60_000,
}
"""Idle seconds before a probe, seconds between probes, their number; ms without an answer."""
_WILDCARDS = {"": "", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class Listeners:
    """Listening sockets, and the configuration with the addresses that they really have."""

    socks: Sequence[socket.socket]
    config: GatewayConfig
    is_ours: bool
    """Whether this process has bound them, and so removes the files of Unix sockets."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors of the sockets that are still open."""
        return tuple(sock.fileno() for sock in self.socks if sock.fileno() >= 0)

    @property
    def urls(self) -> tuple[str, ...]:
        """Addresses that a client of this host can use; empty once the sockets are closed."""
        return tuple(url_of(sock, self.config) for sock in self.socks if sock.fileno() >= 0)

    @property
    def bound_urls(self) -> tuple[str, ...]:
        """Addresses as they were bound; a wildcard stays one, as in `http://0.0.0.0:8080`."""
        return tuple(_url(sock, self.config, {}) for sock in self.socks if sock.fileno() >= 0)

    def close(self) -> None:
        """Listen no longer; idempotent."""
        if self.fds and self.is_ours:
            close_unix(self.config)
        for sock in self.socks:
            sock.close()


def open_listeners(config: GatewayConfig) -> Listeners:
    """Take the sockets of a systemd socket unit, or bind the configured addresses.

    Raises `ConfigError`.
    """
    socks = inherited.from_systemd()
    if socks:
        check_tls(config)
    for sock in socks:
        if sock.family != socket.AF_UNIX:
            _tune(sock)
    is_ours = not socks
    socks = socks or listen(config)
    return Listeners(socks, addressed(config, socks, inherited=not is_ours), is_ours)


def hosts(config: GatewayConfig) -> list[str]:
    """Return the addresses and socket paths of `host`; an empty one is every address."""
    return [host.strip() for host in config.host.split(",")]


def listen(config: GatewayConfig) -> list[socket.socket]:
    """Bind every address; raises `ConfigError` with the address and what to do."""
    check_tls(config)
    bound: list[socket.socket] = []
    port = config.port
    try:
        for host in hosts(config):
            if host.endswith(UNIX_SUFFIX):
                bound.append(_listen_unix(expanded(host)))
                continue
            bound.append(_listen_tcp(host, port, reuse_port=config.reuse_port))
            port = bound[-1].getsockname()[1]  # all addresses get the port that the system chose
    except ConfigError:
        for sock in bound:
            sock.close()
        raise
    return bound


def check_tls(config: GatewayConfig) -> None:
    """Raise `ConfigError` if TLS key and certificate cannot be used."""
    if bool(config.ssl_key_file) != bool(config.ssl_cert_file):
        raise ConfigError("ssl_key_file and ssl_cert_file belong together: set both or neither")
    if not config.ssl_cert_file:
        return
    named = {"ssl_key_file": config.ssl_key_file, "ssl_cert_file": config.ssl_cert_file}
    for option, path in named.items():
        if not is_file(path):
            raise ConfigError(f"{option} {path} does not exist, or is closed to this user")
    import ssl  # 4 MB of memory, which the supervisor does not need for long

    def refuse_encrypted() -> str:
        """Without it OpenSSL would ask the terminal for a password."""
        raise ConfigError(
            f"ssl_key_file {config.ssl_key_file} is encrypted, and nobody could give the password "
            "at each start: remove it with `openssl pkey -in OLD -out NEW`"
        )

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(config.ssl_cert_file, config.ssl_key_file, refuse_encrypted)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(f"{option} {path}" for option, path in named.items())
        raise ConfigError(f"cannot use {files}: {error.strerror or error}") from error


def _listen_tcp(host: str, port: int, *, reuse_port: bool) -> socket.socket:
    where = f"{host}:{port}"
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:  # of the name service's codec
        raise ConfigError(
            f"cannot listen on {where}: no host has such a name; see --host"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot listen on {where}: {error.strerror}; see --host") from error
    family, kind, number, _, address = found[0]
    sock = socket.socket(family, kind, number)
    _tune(sock)
    if reuse_port:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        is_taken = error.errno == errno.EADDRINUSE
        remedy = "choose another with --port, or --port 0" if is_taken else "see --host"
        raise ConfigError(f"cannot listen on {where}: {error.strerror}; {remedy}") from error
    return sock


def _listen_unix(path: Path) -> socket.socket:
    """Bind a path; a socket file that an ended server has left there is replaced."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and _is_left(path):
            path.unlink()
        sock.bind(str(path))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from error
    return sock


def _is_left(path: Path) -> bool:
    """Return whether nobody listens at a socket file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # else it would wait for a server whose backlog is full
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def addressed(
    config: GatewayConfig, socks: Sequence[socket.socket], *, inherited: bool
) -> GatewayConfig:
    """Return the configuration with the port that the system chose.

    Of inherited sockets the addresses count too: the configured ones were never bound.
    """
    ports = [sock.getsockname()[1] for sock in socks if sock.family != socket.AF_UNIX]
    port = ports[0] if ports else config.port
    if not inherited:
        return replace(config, port=port)
    return replace(config, port=port, host=",".join(map(_address, socks)))


def _address(sock: socket.socket) -> str:
    """Return the address or path of a socket, as `host` names it."""
    name = sock.getsockname()
    return str(name if sock.family == socket.AF_UNIX else name[0])


def close_unix(config: GatewayConfig) -> None:
    """Remove the socket files, after the listeners have closed."""
    for host in hosts(config):
        if host.endswith(UNIX_SUFFIX):
            with suppress(OSError):
                expanded(host).unlink()


def _tune(sock: socket.socket) -> None:
    """Set options that accepted connections inherit: no delay, and a time-out for gone peers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in _TCP_OPTIONS.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def url_of(sock: socket.socket, config: GatewayConfig) -> str:
    """Return the address that a client of this host can use."""
    return _url(sock, config, _WILDCARDS)


def _url(sock: socket.socket, config: GatewayConfig, instead: Mapping[str, str]) -> str:
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = instead.get(host, host)
    scheme = "https" if config.ssl_cert_file else "http"
    where = f"[{host}]" if ":" in host else host
    return f"{scheme}://{where}:{port}{config.api_prefix.rstrip('/')}"


def is_local(config: GatewayConfig) -> bool:
    """Return whether all addresses can be reached from this host only."""
    return all(
        host in ("::1", "localhost") or host.startswith(("127.", "/")) or host.endswith(UNIX_SUFFIX)
        for host in hosts(config)
    )
