"""The receiving end of one task: a mailbox between the pool and one request.

It owns what has come for the task and not been fetched yet, and the times of the task. It knows
nothing of sockets, workers' queues or HTTP. Many consecutive deltas are merged while nobody
fetches, so a slow client costs the memory of its text and never holds up a worker.
"""

import asyncio
from collections.abc import Callable

from gateway.metrics.counters import ModelLatencies
from protocol.errors import TaskError
from protocol.wire.facts import TokenProb
from protocol.wire.messages import Delta, Failed, Message, TaskMessage, Terminal

_FEW = 8
"""Up to this many pending deltas are fetched one by one; more are merged into one."""
_COMPACT_AT = 64
"""Pending deltas that are merged into one: an object per token would outweigh its text."""


class TaskStream:
    """One task as its request sees it. One reader; `close` may be called from anywhere."""

    __slots__ = (
        "_closed",
        "_deltas",
        "_ended",
        "_error",
        "_mail",
        "_on_close",
        "_waiter",
        "assigned_at",
        "attempt",
        "branch",
        "first_at",
        "last_at",
        "latencies",
        "model",
        "n_cached",
        "n_expected",
        "n_predicted",
        "n_prompt",
        "peer",
        "slot",
        "submitted_at",
        "task",
        "task_id",
        "worker",
    )

    def __init__(
        self,
        task: TaskMessage,
        *,
        model: str,
        now: float,
        latencies: ModelLatencies,
        on_close: Callable[["TaskStream"], None],
    ) -> None:
        self.task = task
        self.task_id = task.task_id
        self.model = model
        self.attempt = 0
        self.peer = ""
        """Key of the connection that runs the task; empty while it waits."""
        self.worker = ""
        self.slot = -1
        self.branch = ""
        """What decided where it went."""
        self.n_expected = 0
        """Tokens of the prompt that should be cached there."""
        self.n_cached = 0
        """Those that were."""
        self.n_prompt = 0
        self.n_predicted = 0
        self.latencies = latencies
        self.submitted_at = now
        self.assigned_at = 0.0
        self.first_at = 0.0
        self.last_at = 0.0
        self._on_close = on_close
        self._mail: list[Message] = []
        self._deltas: list[Delta] = []
        self._error: TaskError | None = None
        self._ended = False
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        where = self.worker or "queue"
        return f"<TaskStream {self.task_id} {state} at {where} n_predicted={self.n_predicted}>"

    @property
    def queued_s(self) -> float:
        """Seconds from submission to the (last) assignment; 0 while the task waits."""
        return max(0.0, self.assigned_at - self.submitted_at) if self.assigned_at else 0.0

    @property
    def ttft_s(self) -> float:
        """Seconds from submission to the first delta; 0 before it."""
        return self.first_at - self.submitted_at if self.first_at else 0.0

    @property
    def itl_s(self) -> float:
        """Mean seconds between two tokens so far."""
        return (self.last_at - self.first_at) / max(1, self.n_predicted - 1)

    @property
    def is_open(self) -> bool:
        """Whether the terminal message is still to come and somebody waits for it."""
        return not (self._ended or self._closed)

    async def receive(self) -> Message:
        """Return the next message; many pending deltas come as one. Raises `TaskError`."""
        while True:
            if self._mail:
                return self._mail.pop(0)
            if self._deltas:
                if len(self._deltas) <= _FEW:
                    return self._deltas.pop(0)
                pending, self._deltas = self._deltas, []
                return merge(pending)
            if self._error is not None:
                raise self._error
            assert not (self._ended or self._closed), "nothing follows the terminal message"
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    @property
    def has_mail(self) -> bool:
        """Whether the next message has come already."""
        return bool(self._mail or self._deltas)

    async def result(self) -> Terminal:
        """Skip everything up to the terminal message and return that."""
        while True:
            message = await self.receive()
            if isinstance(message, Terminal):
                return message

    def close(self) -> None:
        """Give the task up: cancel it where it runs, drop it where it waits. Never waits."""
        if self._closed:
            return
        self._closed = True
        self._deltas.clear()
        self._mail.clear()
        if not self._ended:
            self._on_close(self)
        self._wake()

    def assigned(self, peer: str, attempt: int, now: float) -> None:
        """Note that the task goes to a worker; only the first wait is the queue's."""
        if not self.assigned_at:
            self.latencies.queue.observe(now - self.submitted_at)
        self.peer, self.attempt, self.assigned_at = peer, attempt, now
        if attempt:  # it begins anew: what came of it was seen by nobody
            self._deltas.clear()
            self._mail.clear()
            self.first_at = self.last_at = 0.0
            self.n_predicted = 0

    def is_at(self, peer: str, attempt: int) -> bool:
        """Tell whether this attempt at this connection is the one that counts."""
        return self.peer == peer and self.attempt == attempt

    def push_delta(self, delta: Delta, now: float) -> None:
        """Add what one step gave; the hot path, called for every token of the pool."""
        if self.first_at:
            n = len(delta.tokens) or 1
            self.latencies.itl.observe((now - self.last_at) / n, n)
        else:
            self.first_at = now
            self.latencies.ttft.observe(now - self.submitted_at)
        self.last_at = now
        self.n_predicted = delta.n_predicted
        pending = self._deltas
        pending.append(delta)
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
        elif len(pending) >= _COMPACT_AT:
            self._deltas = [merge(pending)]

    def push(self, message: Message) -> None:
        """Add a message that is no delta; a terminal one ends the stream."""
        if not self.is_open:
            return
        if isinstance(message, Failed):
            detail = message.detail
            self.fail(TaskError(message.code, message.message, param=message.param, detail=detail))
            return
        if self._deltas:
            self._mail += self._deltas if len(self._deltas) <= _FEW else [merge(self._deltas)]
            self._deltas = []
        self._mail.append(message)
        self._ended = isinstance(message, Terminal)
        self._wake()

    def fail(self, error: TaskError) -> None:
        """End the stream with an error, raised after what is still to be fetched."""
        if self.is_open:
            self._error = error
            self._ended = True
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def merge(deltas: list[Delta]) -> Delta:
    """Make one delta of consecutive ones: texts joined, the last counts and timings."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    tokens: list[int] = []
    probs: list[TokenProb] = []
    prompt: tuple[TokenProb, ...] = ()
    for delta in deltas:
        tokens += delta.tokens
        probs += delta.probs
        prompt = prompt or delta.prompt
    return Delta(
        task_id=last.task_id,
        attempt=last.attempt,
        text="".join([delta.text for delta in deltas]),
        reasoning="".join([delta.reasoning for delta in deltas]),
        tool_calls=tuple([call for delta in deltas for call in delta.tool_calls]),
        tokens=tuple(tokens),
        probs=tuple(probs),
        prompt=prompt,
        n_predicted=last.n_predicted,
        timings=next((d.timings for d in reversed(deltas) if d.timings is not None), None),
    )
