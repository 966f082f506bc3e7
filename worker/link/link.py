"""The worker's main thread: socket, heartbeat, prompts in, engine messages out.

It never computes and never waits for the engine, so it answers while a model loads or a long prompt
is read. What it hears goes to the engine as commands; what the engine emits leaves as frames.
"""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import zmq

from protocol import WIRE_VERSION, facts
from protocol import messages as m
from protocol import side_tasks as s
from protocol.codec import ProtocolError
from protocol.errors import ErrorCode, TaskError
from protocol.messages import Message
from worker.embedding import Desk
from worker.engine.engine import Engine
from worker.engine.task import Abort, AbortAll, Report, Submit, Task
from worker.link.answers import Answers
from worker.link.connection import Connection
from worker.link.outlet import Outlet
from worker.link.parking import Parking, failed
from worker.link.side_tasks import SideTasks
from worker.prompt.prompt import PromptReader
from worker.thoughts import end_thoughts

logger = logging.getLogger(__name__)

TaskKey = tuple[int, int]

DEFAULT_HEARTBEAT_S = 1.0
_FORWARDING_S = 0.1
"""So long a turn forwards what the engine says before the process looks after everything else."""


class Link:
    """Speaks with one gateway on behalf of one engine."""

    def __init__(self, connection: Connection, outlet: Outlet, hello: m.Hello) -> None:
        self._connection = connection
        self._outlet = outlet
        self._hello = hello
        self._engine: Engine | None = None
        self._reader: PromptReader | None = None
        self._card: facts.ModelCard | None = None
        self._side: SideTasks | None = None
        self._desk: Desk | None = None
        self._running: set[TaskKey] = set()
        self._parking = Parking()
        self._away = m.Heartbeat(step=0, busy=0)
        """What is told while there is no engine."""
        self._answers = Answers()
        self._fresh: list[Task] = []
        """Generations of the frame that is being heard."""
        self._heartbeat_s = DEFAULT_HEARTBEAT_S
        self._next_beat = 0.0
        self._sources: list[tuple[Any, int]] = []
        """What a turn waits for."""
        self._is_welcome = False
        self.n_taken = 0
        """Tasks that ever came."""
        self.draining = False
        self.is_open = False
        """The gateway has opened the slots: it will send tasks."""

    # ---- the process --------------------------------------------------------------------------

    def open(self) -> None:
        """Dial the gateway and introduce this worker."""
        self._connection.open()
        waits_for = (self._connection.dealer, self._connection.monitor_fd, self._outlet.fd)
        self._sources = [(source, zmq.POLLIN) for source in waits_for]
        self._connection.send([self._hello])
        if self._card is not None:
            self._connection.send([m.Ready(card=self._card)])

    def close(self, reason: str) -> None:
        """Say good-bye and hang up."""
        self._connection.send([m.Bye(reason=reason)])
        # Without a gateway nobody would ever take the last frames.
        self._connection.close(linger_ms=1000 if self._is_welcome else 0)

    def embed_with(self, desk: Desk) -> None:
        """Take embeddings and rerankings too; to be said before `attach`."""
        self._desk = desk

    def attach(
        self,
        engine: Engine,
        reader: PromptReader,
        card: facts.ModelCard,
        side: SideTasks | None = None,
    ) -> None:
        """Open the slots: the model is loaded. Again, and the tasks that wait for it begin."""
        is_known = self._card is not None
        self._engine, self._reader, self._card, self._side = engine, reader, card, side
        if not is_known:
            self._connection.send([m.Ready(card=card)])
            return
        self._beat()
        with self._checked():
            for task in self._parking.take():
                self._take_task(task)
            self._submit_fresh()

    def detach(self) -> None:
        """Let go of the engine, which is idle: it falls asleep. Tasks wait until it is back."""
        assert self._engine is not None and self.is_idle, f"{self!r} cannot let go"
        beat = self._engine.heartbeat()
        stats = replace(beat.stats, n_kv_used=0)
        self._away = m.Heartbeat(step=beat.step, busy=0, stats=stats, is_sleeping=True)
        if self._side is not None:
            self._side.close()
        self._engine = self._reader = self._side = self._desk = None
        self._beat()

    @property
    def wants_engine(self) -> bool:
        """A task waits for the model."""
        return bool(self._parking)

    def give_up(self, error: TaskError) -> None:
        """End the tasks that wait for the model: it will not come."""
        if ended := self._parking.fail(error):
            self._connection.send(ended)

    def drain(self) -> None:
        """Take nothing new; `is_idle` will say when the rest is done."""
        if not self.draining:
            self.draining = True
            self._connection.send([m.Draining()])

    @property
    def is_idle(self) -> bool:
        """No task is running or on its way out."""
        return not self._running and not self._parking

    def turn(self) -> None:
        """Wait for something, at most until the next heartbeat, and deal with it.

        While only the engine speaks, a turn goes on: a token is to take few calls here, for with
        llama.cpp on all cores each of them keeps it waiting.
        """
        until = time.monotonic() + _FORWARDING_S
        goes_on = self._deal(self._next_beat)
        while goes_on and time.monotonic() < until:
            goes_on = self._deal(min(until, self._next_beat))
        if time.monotonic() >= self._next_beat:
            self._beat()

    # -------------------------------------------------------------------------------------------

    def _deal(self, until: float) -> bool:
        """Deal with what comes; tell whether the engine alone spoke, and will go on speaking."""
        due_s = self._outlet.due_s
        timeout_s = max(0.0, min(until, due_s) - time.monotonic())
        ready: dict[Any, int] = dict(zmq.zmq_poll(self._sources, math.ceil(timeout_s * 1e3)))
        if self._connection.monitor_fd in ready and self._connection.was_dropped():
            self._reconnect("the gateway hung up")
        said: list[Message] = []
        if self._outlet.fd in ready or due_s < math.inf:
            said = self._outlet.take()
            self._forward(said)
        if self._connection.dealer in ready:
            self._hear()
        return bool(said and self._running) and len(ready) <= 1 and not self.draining

    def _beat(self) -> None:
        self._next_beat = time.monotonic() + self._heartbeat_s
        away = replace(self._away, waiting=len(self._parking))
        self._connection.send([self._engine.heartbeat() if self._engine else away])

    def _forward(self, messages: list[Message]) -> None:
        """Send what the engine said; a step that ends a task carries the counters with it."""
        running = self._running
        wanted: list[Message] = []
        ended: list[TaskKey] = []
        for message in messages:
            # What the engine still says about tasks of a connection that is gone is dropped.
            if not isinstance(message, m.TaskMessage):
                wanted.append(message)
            elif (key := (message.task_id, message.attempt)) in running:
                wanted.append(message)
                if isinstance(message, m.Terminal):
                    ended.append(key)
        if not wanted:
            return
        said = self._answers.parse(wanted)
        if ended:
            running.difference_update(ended)
            if self._engine is not None:
                said.append(self._engine.heartbeat())
        for key in self._connection.send(said):
            self._cancel(key)

    def _hear(self) -> None:
        with self._checked():
            while (messages := self._connection.receive()) is not None:
                for message in messages:
                    self._obey(message)
                self._submit_fresh()

    @contextmanager
    def _checked(self) -> Iterator[None]:
        """Begin a new connection where the gateway says what makes no sense."""
        try:
            yield
        except ProtocolError as error:
            self._reconnect(str(error))

    def _submit_fresh(self) -> None:
        """Hand the tasks of a frame over at once: choices of one prompt are to start together."""
        if self._fresh and self._engine is not None:
            self._engine.submit(Submit(self._fresh[0], tuple(self._fresh[1:])))
        self._fresh.clear()

    def _reconnect(self, reason: str) -> None:
        """Start over: what ran for the old connection has nobody to go to."""
        level = logging.WARNING if self._running else logging.INFO
        logger.log(level, "gateway lost tasks=%d reason=%s", len(self._running), reason)
        self._connection.close()
        self._is_welcome = False
        self._running.clear()
        self._parking.take()
        self._answers.clear()
        if self._desk is not None:
            self._desk.drop()
        self._fresh.clear()
        if self._engine is not None:
            self._engine.submit(AbortAll())
        self.open()

    def _obey(self, message: Message) -> None:
        match message:
            case m.Welcome():
                self._welcome(message)
            case m.Opened():
                self.is_open = True
            case m.Cancel():
                self._cancel((message.task_id, message.attempt))
            case m.Drain():
                self.drain()
            case m.Ping():
                pass
            case m.Malformed():
                error = TaskError(ErrorCode.INTERNAL, f"unreadable message: {message.reason}")
                self._connection.send([failed(message, error)])
            case m.TaskMessage():
                self._take_task(message)
            case _:
                logger.warning("unexpected message type=%s", type(message).__name__)

    def _cancel(self, key: TaskKey) -> None:
        if (ended := self._parking.cancel(key)) is not None:
            self._connection.send([ended])
        if self._engine is None or key not in self._running:
            return
        if self._desk is not None:
            self._desk.drop(key)
        self._submit_fresh()
        self._engine.submit(Abort(*key))

    def _welcome(self, message: m.Welcome) -> None:
        if message.wire_version != WIRE_VERSION:
            raise ProtocolError(
                f"the gateway speaks version {message.wire_version}, this worker {WIRE_VERSION}"
            )
        self._is_welcome = True
        self._heartbeat_s = message.heartbeat_s
        self._next_beat = 0.0

    def _take_task(self, message: m.TaskMessage) -> None:
        """Start a task, or answer at once one that needs no slot."""
        self.n_taken += 1
        if self._engine is None and self._card is not None:
            self._parking.add(message)
            return
        try:
            answer = self._answer(message)
        except TaskError as error:
            answer = failed(message, error)
        if answer is not None:
            self._connection.send([answer])

    def _answer(self, message: m.TaskMessage) -> m.Terminal | None:
        assert self._engine is not None and self._reader is not None, "a task came before Ready"
        if self._start(message):
            self._running.add((message.task_id, message.attempt))
            return None
        match message:
            case s.Render():
                return self._reader.render(message)
            case s.SetSystemPrompt():
                return self._reader.set_system_prompt(message)
            case m.Tokenize():
                tokens = tuple(self._reader.tokenize(message))
                pieces = self._engine.vocabulary.special_pieces if message.with_pieces else ()
                return m.Tokenized(
                    task_id=message.task_id,
                    attempt=message.attempt,
                    tokens=tokens,
                    pieces=tuple(pieces[token] for token in tokens) if pieces else (),
                )
            case m.Detokenize():
                tokens = self._reader.valid_tokens(message.tokens)
                return m.Detokenized(
                    task_id=message.task_id,
                    attempt=message.attempt,
                    content=self._engine.vocabulary.render(tokens),
                )
        raise ProtocolError(f"unexpected task {type(message).__name__}")

    def _start(self, message: m.TaskMessage) -> bool:
        """Hand over what is done on the engine's thread; false for what needs nothing of it."""
        assert self._engine is not None and self._reader is not None, "a task came before Ready"
        match message:
            case m.Generate():
                task = self._reader.task(message)
                self._answers.open(task)
                self._fresh.append(task)
            case m.Inspect():
                self._engine.submit(Report(message.task_id, message.attempt))
            case s.EndThoughts():
                self._engine.submit(end_thoughts(self._engine, message))
            case s.SlotAction() | s.SetLora() if self._side is not None:
                self._side.start(message)
            case s.Embed() | s.Rerank():
                if self._desk is None:
                    raise TaskError(ErrorCode.NOT_SUPPORTED, "this worker makes no embeddings")
                self._desk.open(message)
            case _:
                return False
        return True

    def __repr__(self) -> str:
        is_away = self._engine is None
        state = "loading" if self._card is None else "asleep" if is_away else "open"
        state = "draining" if self.draining else state
        return f"<Link {self._hello.worker} {state} running={len(self._running)}>"
