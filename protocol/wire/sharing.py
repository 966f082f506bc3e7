"""How several gateways share one worker: credits, succession, settings that the worker keeps.

The worker is the authority on its credits. A gateway begins with all of the card, as if it were
alone, plus `granted` of `Ready` and `Heartbeat`, which the worker counts, less what it `Returned`,
which the gateway counts. Each number has one owner and frames are neither lost nor overtaken, so
both ends agree on what the gateway may have in the worker at once.
"""

from dataclasses import dataclass

from protocol.wire.facts import SystemPrompt
from protocol.wire.messages import Message

Version = tuple[int, str]
"""Orders settings by age: a count, then the id of the gateway that set it."""
CONFIGURED: Version = (0, "")
"""Version of the settings at a worker's start."""
MAX_VERSIONS = 1 << 53
"""Counts of versions are below; a gateway disconnects a worker that reports others. They begin
again with 1 (RFC 1982), so that no worker can report one after which nothing newer could be set."""


def is_newer(version: Version, other: Version) -> bool:
    """Return whether one version replaces the other; of two different ones, one does."""
    if version[0] == other[0] or not version[0] or not other[0]:
        return version > other
    n_values = MAX_VERSIONS - 1  # an odd number: there is no half
    return (version[0] - other[0]) % n_values <= n_values // 2


def following(version: Version, gateway: str) -> Version:
    """Return the next version, which a gateway sets."""
    return version[0] % (MAX_VERSIONS - 1) + 1, gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Message):
    """Ask for the credits that the gateway does not use; it answers with `Returned` at once."""

    n: int
    """The most that are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned(Message):
    """Answers `Recall`: returns `n` credits to the worker."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Message):
    """Reports the tasks that wait for credits of a worker that several gateways share."""

    waiting: int
    """Tasks that would go to the worker if there were a credit."""
    oldest_s: float = 0.0
    """How long the first of them has waited, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor(Message):
    """Another process takes the gateway's endpoint over: dial it once more.

    The sender finishes what it has; if its connection is lost, it is not dialled again.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay(Message):
    """Take `Successor` back: the gateway goes on as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsReport(Message):
    """Settings of clients in a worker; sent when a gateway connects, and after each change."""

    scales: tuple[tuple[int, float], ...] = ()
    scales_version: Version = CONFIGURED
    system: SystemPrompt = SystemPrompt()
    system_version: Version = CONFIGURED
