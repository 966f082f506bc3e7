"""How several gateways share one worker: credits, succession, settings that the worker keeps.

The worker is the authority on its credits. A gateway begins with all of the card, as if it was
alone, plus `granted` of `Ready` and `Heartbeat`, which the worker counts, less what it `Returned`,
which the gateway counts. Each number has one owner and frames are neither lost nor overtaken, so
both ends agree on what the gateway may have in the worker at once.
"""

from dataclasses import dataclass

from protocol.wire.facts import SystemPrompt
from protocol.wire.messages import Message

Version = tuple[int, str]
"""Which setting is newer: a count, and between equals the id of the gateway that set it."""
CONFIGURED: Version = (0, "")
"""Version of what a worker starts with."""
MOST_VERSIONS = 1 << 53
"""Counts of versions stay below; a gateway has no more to do with a worker that tells others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Message):
    """Ask for the credits that the gateway does not use; it answers with `Returned` at once."""

    n: int
    """The most that are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned(Message):
    """Answers `Recall`: so many credits are the worker's again."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Message):
    """Say what waits for this worker's credits, where other gateways use the worker too."""

    waiting: int
    """Tasks that would go to the worker if there was a credit; 0 is none."""
    oldest_s: float = 0.0
    """How long the first of them has waited, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor(Message):
    """Another process takes the gateway's endpoint over: dial it once more.

    The gateway that says so finishes what it has; its connection is not dialled anew.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay(Message):
    """Take `Successor` back: the gateway goes on as before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsTold(Message):
    """What clients have set in a worker: said when a gateway connects, and after each change."""

    scales: tuple[tuple[int, float], ...] = ()
    scales_version: Version = CONFIGURED
    system: SystemPrompt = SystemPrompt()
    system_version: Version = CONFIGURED
