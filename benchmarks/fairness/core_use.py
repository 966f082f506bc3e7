"""What processes do with the cores: how long they compute, and how long they wait for one.

A time to first token that grows on a machine whose cores are all taken says nothing about the
order in which a pool serves its keys. Read from the kernel's `schedstat`, over all threads.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class CoreUse(NamedTuple):
    """Times of all threads of a process, in seconds."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    """Ready to run, without a core."""

    def since(self, before: "CoreUse") -> "CoreUse":
        """Return what came after an earlier reading."""
        return CoreUse(self.ran_s - before.ran_s, self.waited_s - before.waited_s)

    def plus(self, other: "CoreUse") -> "CoreUse":
        """Add what came at another time."""
        return CoreUse(self.ran_s + other.ran_s, self.waited_s + other.waited_s)


def core_use(pid: int) -> CoreUse:
    """Read what a process has used; nothing where the kernel does not count it."""
    total = CoreUse()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError, ValueError):  # the thread has just ended
                ran, waited, _ = map(int, (task / "schedstat").read_text().split())
                total = total.plus(CoreUse(ran / 1e9, waited / 1e9))
    return total


def told(uses: Mapping[str, CoreUse], seconds: float) -> str:
    """Describe what each process did, in shares of one core."""
    parts = (
        f"{name} {use.ran_s / seconds:.0%} + {use.waited_s / seconds:.0%}"
        for name, use in uses.items()
    )
    return ", ".join(parts)
