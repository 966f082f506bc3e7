"""Asks the other gateways before a model is unloaded because one gateway needs its room.

A gateway without requests of the model answers `yield`, and begins none until it knows the outcome.
A gateway with requests answers `keep`, and the model stays. So no model is unloaded while a gateway
uses it, and a request need not wait for the supervisor. If a request has waited long for the room,
no gateway begins more of the model's, and all are asked again when those of the keepers have ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from protocol.process.control import Line, ModelKept, ModelRecall, Order, Verb

Peer = TypeVar("Peer")
"""The connection of one gateway."""

_LIMIT_S = 10.0
"""A gateway that has not answered after this time counts as stuck, and keeps nothing."""


class GatewayLines(Protocol[Peer]):
    """Sends lines to the gateways, as `ControlServer` does."""

    @property
    def gateways(self) -> Sequence[Peer]:
        """Return the connections that are open."""

    def answer(self, peer: Peer, line: Line) -> None:
        """Send a line to one gateway."""

    def report(self, line: Line) -> None:
        """Send a line to all."""


@dataclass(slots=True)
class _OpenRecall(Generic[Peer]):
    """A model that is unloaded unless a gateway keeps it."""

    silent: list[Peer]
    """Gateways that have not answered yet."""
    until: float


class ModelRecalls(Generic[Peer]):
    """The models to be unloaded, and those that gateways keep."""

    def __init__(self, control: GatewayLines[Peer]) -> None:
        self._control = control
        self._asked: dict[str, _OpenRecall[Peer]] = {}
        self._keepers: dict[str, list[Peer]] = {}
        self._overdue: set[str] = set()
        """Models that will be unloaded: all gateways have closed them."""

    @property
    def deadlines(self) -> list[float]:
        """Return the times at which `settled` must be called."""
        return [recall.until for recall in self._asked.values()]

    def ask(self, model: str, asker: Peer, now: float, *, is_overdue: bool = False) -> None:
        """Ask all gateways except `asker`, which needs the room."""
        if model in self._overdue:
            return
        if model in self._asked:
            self._note_answer(model, asker)
            return
        if is_overdue:
            self._overdue.add(model)
        self._ask(model, [peer for peer in self._control.gateways if peer is not asker], now)

    def _ask(self, model: str, others: list[Peer], now: float) -> None:
        self._asked[model] = _OpenRecall(others, now + _LIMIT_S)
        for peer in others:
            self._control.answer(peer, ModelRecall(model=model, is_overdue=model in self._overdue))

    def take(self, order: Order, peer: Peer) -> None:
        """Handle the answer of a gateway, or the end of its use of a model that it kept."""
        model = order.model
        if order.verb is Verb.YIELD:
            self._note_answer(model, peer)
        elif order.verb is Verb.KEEP and (model in self._asked or model in self._keepers):
            self._asked.pop(model, None)
            self._keepers.setdefault(model, []).append(peer)
            self._control.report(ModelKept(model=model, is_kept=True))
        elif order.verb is Verb.IDLE:
            self._free(
                model, [keeper for keeper in self._keepers.get(model, ()) if keeper is not peer]
            )

    def settled(self, now: float) -> list[str]:
        """Return the models to unload now, because no gateway keeps them."""
        gateways = self._control.gateways
        for model, keepers in list(self._keepers.items()):
            self._free(model, [keeper for keeper in keepers if keeper in gateways])
        for model in self._overdue - self._asked.keys() - self._keepers.keys():
            self._ask(model, list(gateways), now)
        for recall in self._asked.values():
            recall.silent = [peer for peer in recall.silent if peer in gateways]
        found = [
            name for name, recall in self._asked.items() if not recall.silent or recall.until <= now
        ]
        for model in found:
            self.forget(model)
        return found

    def forget(self, model: str) -> None:
        """Note that a model is unloaded or gone; what is answered later does not count."""
        self._asked.pop(model, None)
        self._keepers.pop(model, None)
        self._overdue.discard(model)

    def _note_answer(self, model: str, peer: Peer) -> None:
        if (recall := self._asked.get(model)) is not None:
            recall.silent = [other for other in recall.silent if other is not peer]

    def _free(self, model: str, keepers: list[Peer]) -> None:
        """Note which gateways still keep a model; tell all gateways if none does."""
        if keepers:
            self._keepers[model] = keepers
        elif self._keepers.pop(model, None) is not None and model not in self._overdue:
            self._control.report(ModelKept(model=model, is_kept=False))
