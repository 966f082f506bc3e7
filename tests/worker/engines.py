"""An engine over the fake backend, driven turn by turn on the test's own thread."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from protocol.config.config import WorkerConfig
from protocol.wire.accounts import AccountTable
from protocol.wire.cached import Cached
from protocol.wire.messages import (
    Delta,
    Done,
    Envelope,
    Failed,
    FrameItem,
    Started,
    TaskKey,
    TaskMessage,
    Terminal,
)
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from tests.envelopes import Payload, of_task, payload_of
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.speculation.draft import Drafter
from worker.engine.task import Abort, EngineTask, Submit


@dataclass
class Rig:
    """Engine, fake backend, and everything that was emitted."""

    n_slots: int = 2
    n_ctx: int = 256
    n_batch: int = 64
    n_cells: int = 0
    """All cells, if every slot may use all of them; 0 gives each slot `n_ctx` of its own."""
    n_branches: int = 8
    is_unified: bool = True
    """All sequences share one cache; otherwise each slot has a cache of `n_ctx` cells."""
    needs_checkpoints: bool = False
    """Sequences can be cut only near their ends and at checkpoints."""
    window: int = 0
    """How many of the last tokens can be cut then."""
    n_checkpoints: int = 32
    host_bytes: int = 0
    context_shift: bool = False
    drafter: Drafter | None = None
    spec_slots: int = 8
    self_extend: SelfExtend | None = None
    shows_texts: bool = False
    step_ms: float = 0.0
    accounts: AccountTable | None = None
    lora: tuple[str, ...] = ()
    emitted: list[Payload] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    """What was emitted of tasks, with whose it is."""
    steps: list[Sequence[FrameItem]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = WorkerConfig(
            backend="fake",
            n_slots=self.n_slots,
            n_ctx=self.n_cells or self.n_ctx * self.n_slots,
            kv_unified=self.n_cells > 0,
            cache_branches=self.n_branches if self.can_copy_parts else 0,
            n_batch=self.n_batch,
            lora=self.lora,
            fake_step_ms=self.step_ms,
        )
        self.backend = FakeBackend(config)
        self.backend.is_unified = self.is_unified
        self.backend.states.needs_checkpoints = self.needs_checkpoints
        self.backend.states.window = self.window
        self.backend.states.can_cut = self.can_copy_parts
        self.engine = Engine(
            self.backend,
            EngineConfig(
                n_slots=self.n_slots,
                n_ctx=self.n_cells or self.n_ctx,
                host_bytes=self.host_bytes,
                n_checkpoints=self.n_checkpoints,
                checkpoint_bytes=self.host_bytes,
                context_shift=self.context_shift,
                spec_slots=self.spec_slots,
                self_extend=self.self_extend,
                shows_texts=self.shows_texts,
            ),
            self._emit,
            self.drafter,
            self.accounts,
        )
        self._ids = itertools.count(1)

    @property
    def can_copy_parts(self) -> bool:
        """Whether a spare sequence may share the cells of a part."""
        return self.is_unified and not self.needs_checkpoints

    def _emit(self, messages: Sequence[FrameItem]) -> None:
        self.emitted += map(payload_of, messages)
        self.envelopes += (one for one in messages if isinstance(one, Envelope))
        self.steps.append(messages)

    def task(self, prompt: str, *, slot: int = -1, salt: str = "", **params: Any) -> EngineTask:
        """Make a task as the link would."""
        tokens = self.backend.tokenize(prompt, add_special=True, parse_special=True)
        values = read(SamplingParams(), {"temperature": 0, "n_predict": 8, "stream": True} | params)
        key, blocks = TaskKey(next(self._ids)), chain_of(prompt) if values.cache_prompt else b""
        return EngineTask(key, tokens, values, slot=slot, salt=salt, chain=blocks)

    def submit(self, prompt: str, *, slot: int = -1, salt: str = "", **params: Any) -> int:
        """Submit a task; return its id."""
        task = self.task(prompt, slot=slot, salt=salt, **params)
        self.engine.submit(Submit(task))
        return task.key.id

    def cancel(self, task_id: int) -> None:
        """Ask for a task's end."""
        self.engine.submit(Abort(TaskKey(task_id)))

    def turn(self) -> None:
        """Do one turn; the engine must have something to do, or it would wait for ever."""
        self.engine.turn()

    def finish(self, limit: int = 10_000) -> None:
        """Turn until every task has ended."""
        for _ in range(limit):
            self.turn()
            if not self.engine.n_busy and not self.engine.n_waiting:
                return
        raise AssertionError(f"{self.engine!r} does not come to an end")

    def of(self, task_id: int) -> list[TaskMessage]:
        """Messages of one task."""
        return of_task(self.envelopes, task_id)

    def text(self, task_id: int) -> str:
        """Text of one task."""
        return "".join(message.text for message in self.of(task_id) if isinstance(message, Delta))

    def done(self, task_id: int) -> Done:
        """The successful end of a task."""
        last = self.of(task_id)[-1]
        assert isinstance(last, Done), last
        return last

    def failed(self, task_id: int) -> Failed:
        """The unsuccessful end of a task."""
        last = self.of(task_id)[-1]
        assert isinstance(last, Failed), last
        return last

    def started(self, task_id: int) -> Started:
        """How a task began."""
        return next(message for message in self.of(task_id) if isinstance(message, Started))

    def terminals(self, task_id: int) -> int:
        """Count a task's terminal messages."""
        return sum(isinstance(message, Terminal) for message in self.of(task_id))


_BLOCK = 8
"""Letters in a block of a test's prompt."""


def chain_of(prompt: str) -> bytes:
    """The chain that a gateway would send with a prompt, in short blocks."""
    ends = range(_BLOCK, len(prompt) + 1, _BLOCK)
    return b"".join(blake2b(prompt[:end].encode(), digest_size=8).digest() for end in ends)


def blocks_of(prompt: str) -> set[bytes]:
    """The blocks of a prompt."""
    chain = chain_of(prompt)
    return {chain[i : i + 8] for i in range(0, len(chain), 8)}


def said(rig: Rig) -> set[bytes]:
    """The blocks that a gateway takes for cached after all that was emitted."""
    held: set[bytes] = set()
    for message in rig.emitted:
        if isinstance(message, Cached):
            held -= {run[i : i + 8] for run in message.removed for i in range(8, len(run), 8)}
            held |= {run[i : i + 8] for run in message.added for i in range(8, len(run), 8)}
    return held
