"""A socket for reports that has no room, as that of a reader which gets no CPU."""

import contextlib
import socket
from pathlib import Path


def fill(path: Path) -> int:
    """Send datagrams until there is no room for another one; return how many."""
    n_sent = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.sendto(b"X_OTHER=1", str(path))
                n_sent += 1
    return n_sent
