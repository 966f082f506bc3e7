"""The gateways of a worker: a connection to each, its share of the credits, what it knows.

Belongs to the link's thread. A session outlives its connection: a gateway that goes away is dialled
anew, unless it has announced a successor. The number of a session is part of the key of
every task that comes over it.
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import zmq

from protocol.wire.facts import ModelCard
from protocol.wire.messages import (
    Draining,
    Envelope,
    FrameItem,
    Heartbeat,
    Ready,
    TaskKey,
    Terminal,
)
from protocol.wire.sharing import Recall
from worker.link.gateways.connection import GatewayConnection
from worker.link.gateways.grants import Grants
from worker.link.gateways.settings import WorkerSettings

DEFAULT_HEARTBEAT_S = 1.0
"""Seconds between two heartbeats until the gateway has asked for its own interval."""


class GatewaySession:
    """One gateway as the worker knows it."""

    def __init__(self, connection: GatewayConnection, succeeds: int = -1) -> None:
        self.connection = connection
        self.number = connection.number
        self.is_retired = False
        """A successor has been dialled: this one is not dialled again."""
        self.succeeds = succeeds
        """Number of the session whose gateway asked for this one; -1 is none."""
        self.redial_at = math.inf
        """When to dial again after a loss."""
        self.reset()

    def reset(self) -> None:
        """Forget all that came over the last connection."""
        self.gateway = ""
        """Id of its process; empty until it has answered."""
        self.is_welcome = False
        """It has answered: nothing but `Hello` is sent before."""
        self.heartbeat_s = DEFAULT_HEARTBEAT_S
        self.is_open = False
        """It will send tasks."""
        self.known_credits: tuple[int, int, bool] | None = None
        """The credits that it was told last (`Heartbeat`); None before `Ready`."""


class Sessions:
    """The sessions with all gateways, in the order of their numbers."""

    def __init__(
        self,
        connections: Sequence[GatewayConnection],
        wakes: int,
        heartbeat: Callable[[], Heartbeat],
    ) -> None:
        """`wakes` is a descriptor that is polled beside the connections."""
        self.grants = Grants()
        self.settings = WorkerSettings()
        self._card: ModelCard | None = None
        self.is_held = False
        """The worker is on trial: gateways give it only tasks that name it."""
        self.is_draining = False
        """No gateway gets slots any more."""
        self._heartbeat = heartbeat
        self._all = [GatewaySession(connection) for connection in connections]
        self._wakes = wakes
        self._n_numbers = len(self._all)
        self.sources: list[tuple[Any, int]] = []
        """Sockets and descriptors to poll."""
        self.redial_at = math.inf
        """When the next of them is to be dialled again."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[GatewaySession]:
        """Iterate over a copy, because sessions may be added and removed meanwhile."""
        return iter(tuple(self._all))

    @property
    def heartbeat_s(self) -> float:
        """Seconds between two heartbeats: the shortest interval that a gateway asks for."""
        return min(session.heartbeat_s for session in self._all)

    def get(self, number: int) -> GatewaySession | None:
        """Return the session of a number, unless it has ended."""
        return next((session for session in self._all if session.number == number), None)

    def twin(self, session: GatewaySession, gateway: str) -> GatewaySession | None:
        """Find another session with the same process."""
        others = (other for other in self._all if other is not session)
        return next(
            (other for other in others if other.is_welcome and other.gateway == gateway), None
        )

    def successor(self, session: GatewaySession) -> GatewaySession | None:
        """Find the session that the gateway of another one has asked for."""
        return next((other for other in self._all if other.succeeds == session.number), None)

    def dial(self, session: GatewaySession) -> None:
        """Connect or reconnect."""
        session.reset()
        session.connection.open()
        session.redial_at = math.inf
        self._watch()

    def hang_up(self, session: GatewaySession, *, wait_s: float = 0.0) -> None:
        """Close a connection that was lost, to dial it again when its time has come.

        That is after `wait_s` at the earliest.
        """
        session.redial_at = time.monotonic() + max(wait_s, session.connection.lost())
        session.reset()
        self._watch()

    def due(self) -> list[GatewaySession]:
        """List the sessions that are to be dialled now."""
        now = time.monotonic()
        return [session for session in self._all if session.redial_at <= now]

    def add_successor(self, session: GatewaySession) -> GatewaySession:
        """Make a second session with the endpoint of one that is retired now."""
        session.is_retired = True
        connection = session.connection.second(self._n_numbers)
        self._n_numbers += 1
        new = GatewaySession(connection, succeeds=session.number)
        self._all.append(new)
        return new

    def remove(self, session: GatewaySession) -> None:
        """Close a session and forget it."""
        session.connection.close()
        self._all.remove(session)
        self._watch()

    # ---- credits and settings -----------------------------------------------------------------

    def open_slots(self, card: ModelCard) -> None:
        """Let the gateways send tasks: the model is loaded."""
        self._card = card
        self.grants.size(card.n_slots, card.n_prefetch)
        for session in self:
            self.join(session)

    def join(self, session: GatewaySession) -> None:
        """Open the slots to a gateway that has answered, once the model is loaded.

        One that comes while the worker drains is told that instead.
        """
        if self._card is None or not session.is_welcome or session.known_credits is not None:
            return
        if self.is_draining:
            self._send(session, [Draining()])
            return
        self.grants.open(session.number)
        self.grants.retire(session.number, is_retired=session.is_retired)
        first = self._credit_messages()
        granted = self.grants.granted(session.number)
        session.known_credits = (granted, 0, False)
        settings = self.settings.known
        ready: list[FrameItem] = [Ready(card=self._card, granted=granted, is_held=self.is_held)]
        self._send(session, ready if settings is None else [*ready, settings])
        self.send((), first)
        self.send_credits()

    def leave(self, session: GatewaySession, orders: Collection[TaskKey]) -> None:
        """Let the others have the credits of a gateway that is gone; `orders` of it go on."""
        self.settings.drop(session.number, orders)
        was_shared = self.grants.is_shared
        self.grants.close(session.number)
        if was_shared:
            self.send((), self._credit_messages())

    def drain(self) -> None:
        """Tell the gateways that this worker takes no new tasks; idempotent."""
        if not self.is_draining:
            self.is_draining = True
            self.send([Draining()])

    def send_credits(self) -> None:
        """Send the gateways what has changed of their credits, if there are several."""
        if self.grants.is_shared and (first := self._credit_messages()):
            self.send((), first)

    # ---- out ----------------------------------------------------------------------------------

    def send(
        self, items: Sequence[FrameItem], first: Mapping[int, list[FrameItem]] | None = None
    ) -> Sequence[TaskKey]:
        """Send messages: those of a task to its gateway, all others to every gateway.

        `first` are messages by session that go before them.

        Returns the tasks that have ended because a message could not be sent.
        """
        if len(self._all) == 1 and not first:
            return self._send(self._all[0], items)
        ended: list[TaskKey] = []
        for session in self:
            number = session.number
            mine = [i for i in items if type(i) is not Envelope or i.task.connection == number]
            ended += self._send(session, [*first.get(number, ()), *mine] if first else mine)
        return ended

    def send_ends(self, items: Sequence[FrameItem], *, with_heartbeat: bool) -> Sequence[TaskKey]:
        """Send messages of which some may end tasks, and what changes of the credits.

        A gateway that loses a credit with the end of its task is told so before the end, or it
        would use the credit once more. `with_heartbeat`: the gateways whose tasks end get one.
        """
        ends = [
            item for item in items if type(item) is Envelope and isinstance(item.payload, Terminal)
        ]
        items = self.settings.asked_for(items)
        numbers = {ended.task.connection for ended in ends if self.grants.end(ended.task)}
        if self.grants.is_shared:
            failed = self.send(items, self._credit_messages(numbers if with_heartbeat else ()))
        else:
            failed = self._send_alone(items, with_heartbeat=with_heartbeat)
        for end in ends:
            assert isinstance(end.payload, Terminal)
            if self.settings.end(end.task, end.payload) and (known := self.settings.known):
                self.send([known])
        return failed

    def _send_alone(self, items: Sequence[FrameItem], *, with_heartbeat: bool) -> Sequence[TaskKey]:
        """Send messages while no gateway shares the worker with another."""
        if not with_heartbeat:
            return self.send(items)
        heartbeat = self._heartbeat()
        if len(self._all) == 1:
            return self._send(self._all[0], [*items, self._credited(heartbeat, self._all[0])])
        return self.send(
            items, {session.number: [self._credited(heartbeat, session)] for session in self}
        )

    def send_heartbeats(self) -> None:
        """Send every gateway a heartbeat."""
        heartbeat = self._heartbeat()
        for session in self:
            self._send(session, [self._credited(heartbeat, session)])

    def _send(self, session: GatewaySession, items: Sequence[FrameItem]) -> Sequence[TaskKey]:
        if not items or not session.is_welcome:
            return ()
        ended = session.connection.send(items)
        for key in ended:
            self.grants.end(key, leaves_credit=True)  # its end is on the way already
        return ended

    def _credit_messages(self, forced: Collection[int] = ()) -> dict[int, list[FrameItem]]:
        """Return messages about changed credits by session; `forced` get a heartbeat anyway."""
        found: dict[int, list[FrameItem]] = {}
        recalls = dict(self.grants.settle(time.monotonic()))
        heartbeat: Heartbeat | None = None
        for session in self:
            number = session.number
            if session.known_credits is None:
                continue
            if number in forced or session.known_credits != self._credits(number):
                heartbeat = heartbeat or self._heartbeat()
                found[number] = [self._credited(heartbeat, session)]
            if number in recalls:
                found.setdefault(number, []).append(Recall(n=recalls[number]))
        return found

    def _credits(self, number: int) -> tuple[int, int, bool]:
        grants = self.grants
        return grants.granted(number), grants.others(number), grants.is_shared

    def _credited(self, heartbeat: Heartbeat, session: GatewaySession) -> Heartbeat:
        """Return a heartbeat with the credits of a gateway, and note that it was told."""
        if session.known_credits is None:
            return heartbeat
        granted, others, is_shared = session.known_credits = self._credits(session.number)
        if not (granted or others or is_shared):
            return heartbeat
        return replace(heartbeat, granted=granted, others=others, is_shared=is_shared)

    def _watch(self) -> None:
        ends = [session.connection for session in self._all if session.connection.is_dialled]
        watched = [source for end in ends for source in (end.dealer, end.monitor_fd)]
        self.redial_at = min((session.redial_at for session in self._all), default=math.inf)
        self.sources = [(source, zmq.POLLIN) for source in (*watched, self._wakes)]
