"""Replaces the gateways one after the other: `SIGHUP`, `llamapool reload`."""

import logging
from collections.abc import Callable, Iterator, Sequence

from protocol.errors import ConfigError
from protocol.process.notify import Notifier
from worker.supervisor.children.children import Children
from worker.supervisor.children.launch import Launch
from worker.supervisor.children.managed_child import ChildState
from worker.supervisor.handover import Handover

logger = logging.getLogger("supervisor")

Reread = Callable[[], Sequence[Launch]]
"""Reads the configuration again, writes it, and returns how to start each gateway.

Raises `ConfigError` or `OSError`.
"""


class GatewayReload:
    """The hand-over in progress and those to follow; the next reload begins after them."""

    def __init__(
        self,
        children: Children,
        notifier: Notifier,
        reread: Reread,
        reread_workers: Callable[[float], object],
    ) -> None:
        """`reread_workers` is called after `reread` has succeeded."""
        self._children = children
        self._notifier = notifier
        self._reread = reread
        self._reread_workers = reread_workers
        self._handover: Handover | None = None
        self._waiting: list[Launch] = []
        self._is_asked = False
        self._has_failed = False

    def ask(self) -> None:
        """Replace all gateways, and change the workers; the configuration is read in `turn`."""
        self._is_asked = True

    @property
    def note(self) -> str:
        """Text about the reload for the state of the service; may be empty."""
        if self._handover is not None or self._waiting:
            return "replacing the gateway"
        return "the last reload failed, see the log" if self._has_failed else ""

    def deadlines(self) -> Iterator[float]:
        """Yield the times at which `turn` must be called."""
        if self._handover is not None:
            yield from self._handover.deadlines()

    def turn(self, now: float) -> None:
        """Advance the hand-overs, and forget gateways that have ended."""
        self._drop_ended()
        if self._handover is not None:
            self._handover.turn(now)
            if self._handover.is_over:
                self._finish(self._handover)
        if self._handover is None and not self._waiting and self._is_asked:
            self._is_asked = False
            self._begin(now)
        if self._handover is None and self._waiting:
            self._replace(self._waiting.pop(0), now)

    def _drop_ended(self) -> None:
        for watch in self._children.gateways:
            is_tried = self._handover is not None and watch is self._handover.new
            has_left = watch.leaves_by is not None and not watch.child.is_alive
            if (has_left or watch.child.state is ChildState.ENDED) and not is_tried:
                self._children.watches.remove(watch)

    def _begin(self, now: float) -> None:
        self._notifier.reloading()
        self._has_failed = False
        try:
            self._waiting = list(self._reread())
        except (ConfigError, OSError) as error:  # a full disk, too
            self._has_failed = True
            logger.error(
                "configuration not reloaded",
                extra={"cause": error, "action": "everything stays as it was"},
            )
        else:
            self._reread_workers(now)
        if not self._waiting:
            self._notifier.send(READY=1)

    def _replace(self, launch: Launch, now: float) -> None:
        """Begin the next hand-over, once the gateway has started.

        One that does not run gets the configuration only.
        """
        named = [w for w in self._children.gateways if w.child.launch.name == launch.name]
        old = next((watch for watch in named if watch.leaves_by is None), None)
        if old is not None and old.child.state is ChildState.STARTING:
            self._waiting.insert(0, launch)  # it has read the old configuration
            return
        if old is None or old.child.state is not ChildState.READY:
            if old is not None:
                old.child.launch = launch
            self._end()
            return
        logger.info("replacing gateway", extra={"child": launch.name, "pid": old.child.pid})
        self._handover = Handover(self._children, old, launch, now)

    def _finish(self, handover: Handover) -> None:
        self._handover = None
        if handover.has_failed:
            self._has_failed = True
            self._waiting.clear()
        self._end()

    def _end(self) -> None:
        if not self._waiting:
            self._notifier.send(READY=1)
