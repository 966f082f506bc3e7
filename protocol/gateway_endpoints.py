"""The endpoints of several gateways on one host, each derived from the configured one."""

from pathlib import PurePath
from urllib.parse import urlsplit

from protocol.errors import ConfigError


def endpoint_of(endpoint: str, index: int) -> str:
    """Return where the gateway of an index binds `endpoint`; raises `ConfigError`.

    The first binds it unchanged; the others `ipc://NAME-1.sock`, or the following ports of tcp.
    """
    if index == 0:
        return endpoint
    parts = urlsplit(endpoint)
    if parts.scheme == "ipc":
        path = PurePath(endpoint.removeprefix("ipc://"))
        return f"ipc://{path.with_name(f'{path.stem}-{index}{path.suffix}')}"
    head, _, port = endpoint.rpartition(":")
    if parts.scheme != "tcp" or not port.isdigit() or not 0 < int(port) + index < 65536:
        raise ConfigError(f"gateway.bind: {endpoint}: several gateways need a path or a port each")
    return f"{head}:{int(port) + index}"
