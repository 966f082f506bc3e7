"""Counts bytes that requests hold at once, for all of them and for each tenant."""

from collections import Counter


class ByteBudget:
    """A number of bytes that all share.

    A tenant may hold as much as it leaves free, so that there is always room for others.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.n_bytes = 0
        self._of_tenants: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ByteBudget {self.n_bytes} of {self._max_bytes}>"

    def fits(self, n_more: int, tenant: str) -> bool:
        """Return whether there is room for more bytes of a tenant."""
        n_left = self._max_bytes - self.n_bytes - n_more
        return self._of_tenants[tenant] + n_more <= n_left

    def add(self, n: int, tenant: str) -> None:
        """Count more bytes of a tenant, or with a negative number fewer."""
        self.n_bytes += n
        self._of_tenants[tenant] += n
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
