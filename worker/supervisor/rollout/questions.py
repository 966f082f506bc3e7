"""Golden prompts that a worker is asked through a gateway, and its answers."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.process.control import Answered, GoldenQuestion
from worker.supervisor.control import ControlPeer, ControlServer


@dataclass(slots=True)
class _Asking:
    """One question: the prompts of a worker, in order."""

    asks: list[GoldenQuestion]
    answers: dict[int, str] = field(default_factory=dict)
    """By the id of the prompt."""
    failure: str = ""
    peer: ControlPeer | None = None
    """The gateway that was asked."""


class Questions:
    """Asks through the newest gateway, and through another if that is lost before it answers."""

    def __init__(self, control: ControlServer) -> None:
        self._control = control
        self._ids = itertools.count(1)
        self._asked: dict[int, _Asking] = {}

    def ask(self, number: int, worker: str, prompts: Sequence[str], n_predict: int) -> None:
        """Ask a worker for its greedy answers."""
        self._asked[number] = _Asking(
            [
                GoldenQuestion(
                    id=next(self._ids), worker=worker, prompt=prompt, n_predict=n_predict
                )
                for prompt in prompts
            ]
        )

    def clear(self) -> None:
        """Forget all questions; late answers to them are dropped."""
        self._asked.clear()

    def add_answer(self, answer: Answered) -> None:
        """Store one answer."""
        for asking in self._asked.values():
            if any(ask.id == answer.id for ask in asking.asks):
                asking.answers[answer.id] = answer.text
                asking.failure = asking.failure or answer.error

    def send(self) -> None:
        """Send the questions that no gateway has got yet."""
        peers = self._control.subscribers
        for asking in self._asked.values():
            is_lost = asking.peer is None or not asking.peer.is_open
            if peers and is_lost and len(asking.answers) < len(asking.asks):
                asking.peer = peers[-1]
                for ask in asking.asks:
                    self._control.answer(peers[-1], ask)

    def answers(self, number: int) -> Sequence[str] | str | None:
        """Return the answers in the order of the prompts, or an error text; None while pending."""
        asking = self._asked.get(number)
        if asking is None:
            return None
        if asking.failure:
            return asking.failure
        if len(asking.answers) < len(asking.asks):
            return None
        return [asking.answers[ask.id] for ask in asking.asks]
