"""Messages of the connection, in the order of a worker's life. They travel without an envelope."""

from dataclasses import dataclass, field

from protocol import WIRE_VERSION
from protocol.wire.facts import ModelCard, Stats
from protocol.wire.field_readers import OMITTED
from protocol.wire.messages.envelope import Message

_VERSION = {OMITTED: 8}
"""Up to version 8 it was left out as a default, so that each side read its own. Never to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello(Message):
    """First message of a connection. One worker start, one `epoch`."""

    worker: str
    epoch: int
    model: str
    """The alias under which the model will be served, known before it is loaded."""
    connection: int = 0
    """The worker's number of this connection; it may have several to one address."""
    accounts: int = -1
    """Its descriptor of the memory with its counts (`protocol.wire.accounts`); -1 is none.

    A gateway on the same host reads it when the worker is lost.
    """
    wire_version: int = field(default=WIRE_VERSION, metadata=_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome(Message):
    """Answers `Hello`: who the gateway is and how often it wants a heartbeat."""

    gateway: str
    """Id of the gateway's process, a new one at each start."""
    heartbeat_s: float = 1.0
    wire_version: int = field(default=WIRE_VERSION, metadata=_VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Message):
    """Answers `Hello` with a rejection; connecting again would not help."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready(Message):
    """The model is loaded and warm: the slots are open, unless the worker is held."""

    card: ModelCard
    granted: int = 0
    """As in `Heartbeat`."""
    is_held: bool = False
    """It takes only tasks that name it, until it sends `Admitted`: it is on trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Message):
    """Answers `Ready`: from now on tasks may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted(Message):
    """A held worker takes all tasks from now on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """Sent each interval and with every terminal message."""

    step: int
    busy: int
    waiting: int = 0
    stats: Stats = field(default_factory=Stats)
    is_sleeping: bool = False
    """The model is not loaded: the next task waits until it is."""
    stall_s: float = 10.0
    """While it is busy, `step` grows at least this often, or the worker ends itself."""
    granted: int = 0
    """Credits given to this gateway less those taken from it, since the connection began.

    It begins with all of the card; what it returned by itself is not counted here.
    """
    others: int = 0
    """Tasks of other gateways that hold a credit."""
    is_shared: bool = False
    """Other gateways use the worker too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Message):
    """Carries nothing: sending it makes ZeroMQ notice a peer that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain(Message):
    """Finish what runs, then send `Bye` and exit with 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining(Message):
    """The worker takes nothing new; it leaves when its tasks have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye(Message):
    """The worker leaves; its running tasks have ended before."""

    reason: str
    is_failure: bool = False
    """It cannot go on. Tasks that it has not started go to other workers."""
