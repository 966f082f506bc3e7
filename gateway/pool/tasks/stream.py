"""The mailbox of one task, between the pool and one request.

It owns the messages that have come for the task and were not fetched yet, and writes into the
task's record what was delivered. It knows nothing of sockets, queues or HTTP. Many consecutive
deltas are merged while nobody fetches, so a slow client costs the memory of its text and never
holds up a worker.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.metrics.counters import ModelLatencies
from gateway.metrics.ended_task import EndedTask
from gateway.pool.plausible import longest_prompt
from gateway.pool.tasks.deltas import compact, merge, size_of
from gateway.pool.tasks.task import Task
from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import Delta, Failed, Generate, TaskMessage, Terminal

logger = logging.getLogger(__name__)

_FEW_DELTAS = 8
"""Up to this many pending deltas are returned one at a time; more are merged into one."""
_COMPACT_AT = 64
"""Pending deltas at which they are merged: an object per token takes more memory than its text."""
_COMPACT_BYTES = 256 * 1024
"""Bytes of pending alternatives at which they are merged, and counted."""
_MAX_PENDING = 64 * 1024 * 1024
"""Bytes that wait for a slow client; with 1,000 alternatives of each token those of 300 tokens."""
_MAX_TOGETHER = 1024 * 1024 * 1024
"""Bytes that wait for all slow clients, also behind answers that have ended."""
_TOO_SLOW = "the answer was given up: its client reads it too slowly"


Write = tuple[Callable[[bytes], object], bytes]
"""A call that sends, and what it sends."""

Taker = Callable[[Sequence[Delta]], Write | None]
"""Takes deltas in the turn of the loop in which they came; None if they have to be fetched."""


@dataclass(frozen=True, slots=True)
class Resumed(TaskMessage):
    """Tells the reader that another worker continues the answer; it is never sent to a worker."""


class DeltaOffers:
    """The streams with deltas of this turn of the loop; one call offers them all to their readers.

    It counts what waits for all readers, too. A call of the loop for each stream costs as much as
    to write its token. All are formatted before the first is written: that keeps caches warm.
    """

    def __init__(self) -> None:
        self._streams: list[TaskStream] = []
        self.n_waiting = 0
        """Bytes that wait for slow clients."""
        self.holders: set[TaskStream] = set()
        """The streams that hold them."""

    def add(self, stream: "TaskStream") -> None:
        """Offer what a stream has at the end of this turn."""
        if not self._streams:
            asyncio.get_running_loop().call_soon(self._offer)
        self._streams.append(stream)

    def _offer(self) -> None:
        streams, self._streams = self._streams, []
        taken = [(stream, offer) for stream in streams if (offer := stream.offer()) is not None]
        for stream, (write, data) in taken:
            try:
                write(data)
            except Exception as error:
                stream.fail_reader(error)


class TaskStream:
    """One task as its request sees it. One reader; `close` may be called from anywhere."""

    def __init__(
        self,
        task: Task,
        request: TaskMessage,
        *,
        latencies: ModelLatencies,
        offers: DeltaOffers,
        on_close: Callable[["TaskStream"], None],
    ) -> None:
        self.task = task
        self.answer = task.answer
        self.request = request
        """What is sent to the worker."""
        self.latencies = latencies
        self._offers = offers
        self._on_close = on_close
        self._mail: list[TaskMessage] = []
        self._deltas: list[Delta] = []
        self._merged: list[int] = []
        """Sizes of the first ones, which have been merged of many."""
        self._error: TaskError | None = None
        self._ended = False
        self._closed = False
        self._take: Taker | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._longest_prompt = -1
        """Not computed yet while negative."""
        self._n_held = self._n_writing = 0
        """Bytes that wait for a slow client; of these, what the reader is writing."""
        self._n_uncounted = 0
        """Bytes of alternatives that came since."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "ended" if self._ended else "open"
        task = self.task
        where = task.worker_name or "queue"
        return (
            f"<TaskStream {task.task_id} {state} at {where} n_predicted={self.answer.n_predicted}>"
        )

    @property
    def task_id(self) -> int:
        """Id of the task."""
        return self.task.task_id

    @property
    def is_open(self) -> bool:
        """Whether the terminal message is still to come and somebody waits for it."""
        return not (self._ended or self._closed)

    def longest_prompt(self) -> int:
        """Return a number of tokens that the prompt cannot exceed.

        Computed once: each step that reads a long prompt asks, and a prompt may have a million ids.
        """
        if self._longest_prompt < 0:
            self._longest_prompt = longest_prompt(self.request)
        return self._longest_prompt

    async def receive(self, take: Taker | None = None) -> TaskMessage:
        """Return the next message; many pending deltas come as one. Raises `TaskError`.

        Deltas that come while this waits are offered to `take`: to wake a task for each token costs
        more than to write the token.
        """
        if self._n_writing:
            self._hold(self._n_held - self._n_writing)
            self._n_writing = 0
        while True:
            if self._mail or self._deltas:
                self._n_writing, self._n_uncounted = self._n_held, 0
            if self._mail:
                return self._mail.pop(0)
            if self._deltas:
                pending = self._deltas = _few(self._deltas)
                self._merged = []
                return pending.pop(0)
            if self._error is not None:
                raise self._error
            assert not (self._ended or self._closed), "nothing follows the terminal message"
            self._take = take
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
        self._take = None  # refers to the reader, and so to this stream
        self._deltas.clear()
        self._merged.clear()
        self._mail.clear()
        self._hold(0)
        self._n_writing = 0
        if not self._ended:
            self._on_close(self)
        self._wake()

    def restart(self) -> None:
        """Drop the messages of an earlier attempt, unseen by any client: the answer restarts."""
        self.answer = self.task.answer
        self._deltas.clear()
        self._merged.clear()
        self._mail.clear()
        self._hold(self._n_writing)

    def continued_request(self) -> TaskMessage:
        """Return what the next worker is sent: the request, with the partial answer."""
        task = self.task
        if not task.spec.continues:
            self.restart()
        logger.info(
            "task moved",
            extra={
                "task": task.task_id,
                "attempt": task.attempt,
                "model": task.spec.model,
                "worker": task.worker_name,
                "cause": task.cause,
                "n_predicted": self.answer.n_predicted,
            },
        )
        partial = self.answer.partial(pause_after_prefill=task.is_paused)
        if partial is None or not isinstance(self.request, Generate):
            return self.request
        return replace(self.request, partial_answer=partial)

    def push_delta(self, delta: Delta, now: float) -> None:
        """Add what one step gave; the hot path, called for every token of the pool."""
        answer, tokens = self.answer, delta.tokens
        if answer.last_at:
            n = len(tokens) or 1
            self.latencies.itl.observe((now - answer.last_at) / n, n)
        else:
            self._begin(delta, now)
        answer.last_at = now
        answer.n_predicted = delta.n_predicted
        answer.n_text += len(delta.text)
        if tokens:
            answer.tokens.extend(tokens)
            answer.sampler_state = delta.sampler_state
        if delta.reasoning or delta.tool_calls:
            answer.add_parts(delta)
        pending = self._deltas
        pending.append(delta)
        if self._waiter is not None and self._take is None:
            self._wake()
        elif self._waiter is not None and len(pending) == 1:
            self._offers.add(self)
        elif self._waiter is None:
            if delta.probs or delta.prompt:
                self._n_uncounted += size_of(delta)
            n_fresh = len(pending) - len(self._merged)
            if n_fresh >= _COMPACT_AT or self._n_uncounted >= _COMPACT_BYTES:
                self._compact()

    def _compact(self) -> None:
        """Merge what waits for a slow client; give the task up if that is too much."""
        compact(self._deltas, self._merged)
        self._n_uncounted, n_bytes = 0, sum(self._merged)
        self._hold(self._n_writing + n_bytes)
        if n_bytes > _MAX_PENDING:
            self._drop()
        elif self._offers.n_waiting > _MAX_TOGETHER:
            max(self._offers.holders, key=lambda holder: holder._n_held - holder._n_writing)._drop()

    def _drop(self) -> None:
        """Give up what waits for a slow client, also of an answer that has ended."""
        self._deltas, self._mail, self._merged = [], [], []
        self._hold(self._n_writing)
        self._error = TaskError(ErrorCode.UNAVAILABLE, _TOO_SLOW)
        if self.is_open:
            self._ended = True
            self._on_close(self)

    def _hold(self, n_bytes: int) -> None:
        self._offers.n_waiting += n_bytes - self._n_held
        self._n_held = n_bytes
        holders = self._offers.holders
        (holders.add if n_bytes else holders.discard)(self)

    def offer(self) -> Write | None:
        """Offer the waiting reader the new deltas; return what it writes of them.

        The reader is woken if it takes none.
        """
        waiter, take = self._waiter, self._take
        if waiter is None or waiter.done() or take is None or not self._deltas:
            return None  # something else has woken it
        pending, self._deltas = self._deltas, []
        try:
            write = take(_few(pending))
        except Exception as error:
            self.fail_reader(error)
            return None
        if write is None:
            self._deltas = pending
            self._wake()
        return write

    def fail_reader(self, error: Exception) -> None:
        """Raise an error where the reader waits: what it took cannot be written."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _begin(self, delta: Delta, now: float) -> None:
        """Take the first delta of an attempt."""
        gap_s = self.answer.begin(delta, self.task.started_at, now)
        if gap_s:
            self.latencies.gap.observe(gap_s)
        else:
            ttft_s = now - self.task.submitted_at
            self.latencies.began(ttft_s, self.answer.n_prompt, self.answer.n_cached)

    def push(self, message: TaskMessage) -> None:
        """Add a message that is no delta; a terminal one ends the stream."""
        if not self.is_open:
            return
        if isinstance(message, Failed):
            detail = message.detail
            self.fail(TaskError(message.code, message.message, param=message.param, detail=detail))
            return
        if self._deltas:
            self._mail += _few(self._deltas)
            self._deltas, self._merged = [], []
            self._hold(self._n_held + self._n_uncounted)
        self._mail.append(message)
        self._ended = isinstance(message, Terminal)
        self._wake()

    def fail(self, error: TaskError) -> None:
        """End the stream with an error, raised after what is still to be fetched."""
        if self.is_open:
            self._error = error
            self._ended = True
            self._wake()

    def ended(self, finish: str, now: float) -> EndedTask:
        """Return what is counted of the task, which has ended so."""
        task, answer, request = self.task, self.answer, self.request
        return EndedTask(
            model=task.spec.model,
            finish=finish,
            key=task.spec.key,
            submitted_at=task.submitted_at,
            started_at=answer.first_at - answer.prompt_s,
            first_at=answer.first_at,
            last_at=answer.latest_at,
            ended_at=now,
            queue_s=task.waited_s,
            was_refused=self._error is not None and not task.worker_name,
            n_prompt=answer.n_prompt,
            n_cached=min(answer.n_cached, answer.n_prompt),
            n_predicted=answer.n_reported,
            n_max=request.params.n_predict if isinstance(request, Generate) else 0,
        )

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _few(deltas: list[Delta]) -> list[Delta]:
    return deltas if len(deltas) <= _FEW_DELTAS else [merge(deltas)]
