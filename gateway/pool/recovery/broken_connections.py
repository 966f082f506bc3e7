"""Tells a worker that has died from one whose connection broke: the latter connects again."""

from gateway.pool.network.worker_connection import WorkerConnection

_MAX = 1024
"""Names remembered; the one that was lost longest ago is forgotten first."""


class BrokenConnections:
    """The latest connection of each worker that ended without a word."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[int, str, str]] = {}
        """Epoch, CURVE key and key of the connection."""

    def ended(self, peer: WorkerConnection) -> None:
        """Note that the connection of a worker has ended."""
        self._by_name.pop(peer.name, None)
        self._by_name[peer.name] = (peer.epoch, peer.curve_key, peer.key)
        if len(self._by_name) > _MAX:
            del self._by_name[next(iter(self._by_name))]

    def back(self, peer: WorkerConnection) -> str:
        """Return the key of the connection that this process had before; empty if it had none."""
        epoch, curve_key, key = self._by_name.pop(peer.name, (0, "", ""))
        return key if (epoch, curve_key) == (peer.epoch, peer.curve_key) else ""
