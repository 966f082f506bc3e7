"""Connections that end before they are authenticated: counted, and logged once a minute.

Pure but for the log line. The address is often all that an operator has to find a worker whose key
was forgotten.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

logger = logging.getLogger(__name__)

_QUIET_S = 60.0
"""Seconds between two log lines about one address."""
_MAX_PEERS = 1024
"""Addresses remembered; the one logged longest ago is forgotten first."""


@dataclass(slots=True)
class _Peer:
    quiet_until: float
    n_unlogged: int = 0


class FailedHandshakes:
    """Logs failures, at most once a minute for each address."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def failed(self, address: str, kind: str, cause: str, now: float) -> None:
        """Count a failure of this kind; log it unless this address was logged a moment ago."""
        self._count(kind)
        peer = self._peers.get(address)
        if peer is not None and now < peer.quiet_until:
            peer.n_unlogged += 1
            return
        logger.warning(
            "handshake failed",
            extra={
                "client": address or "unknown: it disconnected at once",
                "cause": cause,
                "n_before": peer.n_unlogged if peer is not None else 0,
                "hint": "if it is a worker of yours, compare the keys of both ends",
            },
        )
        self._peers[address] = _Peer(now + _QUIET_S)
        self._peers.move_to_end(address)
        if len(self._peers) > _MAX_PEERS:
            self._peers.popitem(last=False)
