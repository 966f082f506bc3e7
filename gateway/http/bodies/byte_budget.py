"""Counts bytes that requests hold at once, for all of them and for each tenant."""

from collections import Counter

_OF_THIS_HOST = ("", "::/64")
"""Tenants of clients without a key: over a Unix socket, and from ::1."""


class ByteBudget:
    """A number of bytes that all share.

    A tenant may hold as much as it leaves free, so that there is always room for others. Clients of
    this host without a key may hold all of it: a proxy here speaks for every one of its clients.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.n_bytes = 0
        self._of_tenants: Counter[str] = Counter()

    def fits(self, n_more: int, tenant: str) -> bool:
        """Return whether there is room for more bytes of a tenant."""
        n_left = self._max_bytes - self.n_bytes - n_more
        is_of_this_host = tenant in _OF_THIS_HOST or tenant.startswith("127.")
        return n_left >= (0 if is_of_this_host else self._of_tenants[tenant] + n_more)

    def add(self, n: int, tenant: str) -> None:
        """Count more bytes of a tenant, or with a negative number fewer."""
        self.n_bytes += n
        self._of_tenants[tenant] += n
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
