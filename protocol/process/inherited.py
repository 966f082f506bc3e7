"""Listening sockets that another process has bound: systemd's socket unit, or our supervisor.

systemd passes them as the descriptors 3 and up, with `LISTEN_FDS`, `LISTEN_PID` and
`LISTEN_FDNAMES`. The supervisor can neither choose these numbers nor know the process id of a child
without running code between fork and exec, so it names the descriptors in a variable of its own.
"""

import os
import socket

from protocol.errors import ConfigError

LISTEN_VARIABLE = "LLAMAPOOL_LISTEN_FDS"
"""Environment variable of a gateway: numbers of its listening sockets, separated by commas."""

_FIRST_FD = 3
"""systemd's `SD_LISTEN_FDS_START`."""
_MOST = 64
"""Maximum number of sockets of a socket unit."""
_SYSTEMD = ("LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


def from_supervisor() -> list[socket.socket]:
    """Take the sockets that our supervisor has passed; none if there is no supervisor."""
    text = os.environ.pop(LISTEN_VARIABLE, "")
    return [_taken(int(number), LISTEN_VARIABLE) for number in text.split(",") if number]


def from_systemd() -> list[socket.socket]:
    """Take the sockets of a systemd socket unit; none if it has passed none to this process.

    Raises `ConfigError` that names the descriptor which is no listening stream socket.
    """
    count, pid, names = (os.environ.pop(name, "") for name in _SYSTEMD)
    if not count or pid != str(os.getpid()):  # none, or another process's
        return []
    if not count.isdigit() or int(count) > _MOST:
        raise ConfigError(f"LISTEN_FDS {count}: must be a number up to {_MOST}")
    named = dict(enumerate(names.split(":"))) if names else {}
    return [
        _taken(_FIRST_FD + index, f"socket {named.get(index, index)} of LISTEN_FDS")
        for index in range(int(count))
    ]


def _taken(number: int, what: str) -> socket.socket:
    """Open an inherited descriptor; no child of this process inherits it again by accident."""
    try:
        os.set_inheritable(number, False)
        sock = socket.socket(fileno=number)
        is_listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"{what}: descriptor {number}: {error.strerror}") from error
    if sock.type != socket.SOCK_STREAM or not is_listening:
        raise ConfigError(f"{what}: descriptor {number} is no listening stream socket")
    return sock
