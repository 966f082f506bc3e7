"""A pool on a clock of its own: workers that cache, read and write at given speeds, and clients.

Everything is decided by the dispatcher under test; minutes of traffic take milliseconds.
"""

import heapq
import itertools
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gateway.pool.dispatch.actions import Action, Assign, Deliver, Fail
from gateway.pool.dispatch.dispatcher import Dispatcher
from gateway.pool.tasks.block_hashes import Prefix, fingerprint
from gateway.pool.tasks.spec import TaskSpec
from protocol.wire.facts import ModelCard, Timings
from protocol.wire.messages import (
    Done,
    Envelope,
    Finish,
    Generate,
    Started,
    TaskKey,
)
from protocol.wire.sampling import SamplingParams
from tests.gateway.chains import Speaker

CHARS = 4
"""Of a token."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What a simulated worker can do."""

    n_slots: int = 4
    n_prefetch: int = 1
    read_per_s: float = 1000.0
    write_per_s: float = 50.0
    crowding: float = 0.02
    n_cells: int = 100_000
    """Tokens that its cache holds; beyond it the oldest prompt goes."""


@dataclass(kw_only=True)
class Turn:
    """One request of a client."""

    text: str
    n_answer: int = 50
    ends: Callable[["Turn"], None] = lambda _: None
    session: int = 0
    stays: int = 0
    """Number of the conversation."""
    worker: str = ""
    n_cached: int = 0
    chain: bytes = b""
    asked_at: float = 0.0
    first_at: float = 0.0
    failed: bool = False

    @property
    def n_prompt(self) -> int:
        return len(self.text) // CHARS


@dataclass
class SimWorker:
    """Slots, one reader for all prompts, and a cache of texts."""

    key: str
    speed: Speed
    held: Speaker
    queue: list[tuple[int, int]] = field(default_factory=list)
    running: dict[tuple[int, int], int] = field(default_factory=dict)
    """Attempt -> slot."""
    cache: OrderedDict[int, str] = field(default_factory=OrderedDict)
    """Task -> the text that it has left."""
    reads_until: float = 0.0

    def longest(self, text: str) -> int:
        return max((shared(text, one) for one in self.cache.values()), default=0) // CHARS

    def keep(self, task_id: int, text: str) -> list[int]:
        """Cache a text; return the tasks whose texts had to go."""
        self.cache[task_id] = text
        gone = []
        while sum(map(len, self.cache.values())) // CHARS > self.speed.n_cells:
            gone.append(self.cache.popitem(last=False)[0])
        return gone


class Simulation:
    """The event loop of it all."""

    def __init__(
        self,
        *speeds: Speed,
        queue_timeout_s: float = 60.0,
        queue_size: int = 1000,
        blind: bool = False,
    ) -> None:
        self.pool = Dispatcher(queue_size=queue_size, queue_timeout_s=queue_timeout_s)
        self.blind = blind
        """Nothing is known of prompts: the control."""
        self.now = 0.0
        self.turns: dict[int, Turn] = {}
        self.workers: dict[str, SimWorker] = {}
        self.loads: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count(1)
        self._order = itertools.count()
        for i, speed in enumerate(speeds):
            self.join(f"w{i}", speed)

    def join(self, key: str, speed: Speed) -> None:
        say = Speaker(lambda message: self.pool.cached(key, message))
        self.workers[key] = SimWorker(key, speed, say)
        self.pool.worker_hello(key, key, "m")
        card = ModelCard(
            name="m",
            path="",
            n_slots=speed.n_slots,
            n_prefetch=speed.n_prefetch,
            n_ctx=8192,
            n_ctx_total=8192,
        )
        self._perform(self.pool.worker_ready(key, card, self.now))

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def ask(self, turn: Turn) -> int:
        """Submit a request now."""
        task_id = next(self._ids)
        self.turns[task_id] = turn
        turn.asked_at = self.now
        task = Generate(prompt=turn.text, params=SamplingParams())
        prefix = Prefix() if self.blind else fingerprint(task, "m")
        turn.chain = prefix.chain
        spec = TaskSpec(
            task_id=task_id,
            model="m",
            n_tokens=turn.n_prompt,
            prefix=prefix,
            session=0 if self.blind else turn.session,
        )
        self._perform(self.pool.submit(spec, self.now))
        return task_id

    def run(self, until: float = 1e9) -> None:
        """Let everything happen; every half second the pool's clock ticks."""
        self._tick(until)
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()

    def _tick(self, until: float) -> None:
        self._perform(self.pool.expire(self.now))
        if self.pool.n_tasks or self._events:
            self.at(self.now + 0.5, lambda: self._tick(until))

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Assign():
                    turn, worker = self.turns[action.task_id], self.workers[action.worker]
                    turn.worker = action.worker
                    self.loads[action.worker] += 1
                    worker.queue.append((action.task_id, action.attempt))
                    self._admit(worker)
                case Deliver(message):
                    turn = self.turns[message.task.id]
                    turn.ends(turn)
                case Fail(task_id, _):
                    self.turns[task_id].failed = True

    def _admit(self, worker: SimWorker) -> None:
        while worker.queue and len(worker.running) < worker.speed.n_slots:
            attempt = worker.queue.pop(0)
            slot = min(set(range(worker.speed.n_slots)) - set(worker.running.values()))
            worker.running[attempt] = slot
            self._start(worker, attempt, slot)

    def _start(self, worker: SimWorker, attempt: tuple[int, int], slot: int) -> None:
        turn = self.turns[attempt[0]]
        turn.n_cached = min(worker.longest(turn.text), turn.n_prompt - 1)
        started = Envelope(
            TaskKey(*attempt),
            Started(slot=slot, n_prompt=turn.n_prompt, n_cached=turn.n_cached),
        )
        # From now on it is shared, also while it is being read.
        self._keep(worker, attempt[0], turn.text)
        self.pool.started(worker.key, started, self.now)
        read_s = (turn.n_prompt - turn.n_cached) / worker.speed.read_per_s
        worker.reads_until = max(self.now, worker.reads_until) + read_s
        self.at(worker.reads_until, lambda: self._write(worker, attempt))

    def _write(self, worker: SimWorker, attempt: tuple[int, int]) -> None:
        turn = self.turns[attempt[0]]
        turn.first_at = self.now
        self.pool.delta_came(worker.key, TaskKey(*attempt), self.now)
        slowness = 1 + worker.speed.crowding * (len(worker.running) - 1)
        write_s = turn.n_answer * slowness / worker.speed.write_per_s
        self.at(self.now + write_s, lambda: self._finish(worker, attempt, write_s))

    def _finish(self, worker: SimWorker, attempt: tuple[int, int], write_s: float) -> None:
        turn = self.turns[attempt[0]]
        del worker.running[attempt]
        whole = turn.text + answer_of(turn)
        worker.cache.pop(attempt[0], None)
        self._keep(worker, attempt[0], whole)
        done = Envelope(
            TaskKey(*attempt),
            Done(
                finish=Finish.EOS,
                n_prompt=turn.n_prompt,
                n_predicted=turn.n_answer,
                n_past=len(whole) // CHARS,
                timings=Timings(predicted_n=turn.n_answer, predicted_ms=write_s * 1000),
            ),
        )
        actions = self.pool.ended(worker.key, done, self.now)
        self._admit(worker)
        self._perform(actions)

    def _keep(self, worker: SimWorker, task_id: int, text: str) -> None:
        """Let a worker cache a text and say what it holds now."""
        gone = worker.keep(task_id, text)
        worker.held.hold(task_id, self.turns[task_id].chain)
        for one in gone:
            worker.held.hold(one, b"")


def shared(one: str, other: str) -> int:
    """Count the characters that both begin with."""
    least, most = 0, min(len(one), len(other))
    while least < most:
        middle = (least + most + 1) // 2
        if one[:middle] == other[:middle]:
            least = middle
        else:
            most = middle - 1
    return least


def words(name: str, n_tokens: int) -> str:
    """A text of so many tokens that no other name has."""
    text = "".join(f"{name}.{i} " for i in range(n_tokens))
    return text[: n_tokens * CHARS]


def answer_of(turn: Turn) -> str:
    return words(f"a{zlib.crc32(turn.text.encode())}", turn.n_answer)


class Conversation:
    """A client that asks, reads, thinks and asks again with all that was said."""

    def __init__(
        self, simulation: Simulation, name: str, *, system: str, n_turns: int, stays: int = 0
    ) -> None:
        self.turns: list[Turn] = []
        self._simulation = simulation
        self._name = name
        self._n_turns = n_turns
        self._text = system
        self._stays = stays

    def ask(self) -> None:
        self._text += words(f"{self._name}u{len(self.turns)}", 120)
        turn = Turn(text=self._text, ends=self._ends, stays=self._stays)
        self.turns.append(turn)
        self._simulation.ask(turn)

    def _ends(self, turn: Turn) -> None:
        self._text = turn.text + answer_of(turn)
        if len(self.turns) < self._n_turns:
            think_s = 1.0 + zlib.crc32(f"{self._name}{len(self.turns)}".encode()) % 400 / 100
            self._simulation.at(self._simulation.now + think_s, self.ask)
