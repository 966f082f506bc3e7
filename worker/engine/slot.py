"""A slot: a place in the KV cache that serves one task at a time and keeps its tokens afterwards.

Invariant: `tokens` are exactly the tokens whose cells sequence `id` holds, index = position, unless
self-extend lets tokens share positions.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from protocol.wire.accounts import spare_row, usage_of
from protocol.wire.cached import BLOCK_BYTES
from protocol.wire.facts import SlotReport, Timings, TokenProb, Usage
from protocol.wire.messages import Envelope, Started
from protocol.wire.sampling import SamplingParams
from worker.engine.adapters import Scales
from worker.engine.backend import Sampler
from worker.engine.media import (
    Media,
    are_whole,
    count_shared,
    without_handles,
    without_placeholders,
)
from worker.engine.sequence_state import Checkpoint, HostCacheHit
from worker.engine.task import EngineTask
from worker.output.generation import TextGeneration
from worker.output.response_buffer import ResponseBuffer

CacheNamespace = tuple[Scales, str]
"""Scales of the adapters, and salt of the tenant: tokens read in one namespace serve only that."""


class BlockChain(NamedTuple):
    """Blocks of a prompt, and how many leading tokens of a sequence they stand for."""

    blocks: bytes = b""
    n_tokens: int = 0

    def cut(self, n: int) -> "BlockChain":
        """Return the chain of the first `n` tokens; blocks count as equally long."""
        if n >= self.n_tokens:
            return self
        n_blocks = len(self.blocks) // BLOCK_BYTES * n // self.n_tokens
        return BlockChain(self.blocks[: BLOCK_BYTES * n_blocks], n)

    def begins_with(self, other: "BlockChain") -> bool:
        """Return whether all blocks of another chain are the first of this one."""
        return self.blocks.startswith(other.blocks)


class SlotState(Enum):
    """State of a slot."""

    IDLE = auto()
    PREFILL = auto()
    """Reading the prompt."""
    DECODE = auto()
    """Generating: one token a step."""


TRANSITIONS: Mapping[SlotState, frozenset[SlotState]] = {
    SlotState.IDLE: frozenset({SlotState.PREFILL}),
    SlotState.PREFILL: frozenset({SlotState.DECODE, SlotState.IDLE}),
    SlotState.DECODE: frozenset({SlotState.IDLE, SlotState.PREFILL}),
}


@dataclass(slots=True)
class SlotTask:
    """State of the task that a slot serves."""

    task: EngineTask
    sampler: Sampler
    generation: TextGeneration
    started_s: float
    n_cached: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    pending: int = -1
    """The sampled token that is not in the cache yet."""
    n_shifted: int = 0
    order: int = 0
    """Admission number: lower is older."""
    n_draft: int = 0
    n_draft_accepted: int = 0
    probed: list[TokenProb] = field(default_factory=list)
    """Probability of each prompt token after the first, if the task asked for it."""
    reading: list[int] = field(default_factory=list)
    """Tokens that must be in the cache before the next token is chosen: the prompt, and what was
    generated before a preemption or by another worker."""
    account: memoryview = field(default_factory=spare_row)
    """What it has cost so far (`protocol.wire.accounts`): tokens of `reading` that were computed,
    all that were computed twice included, those that were found in the cache, and new tokens."""
    n_recovered: int = 0
    """Tokens of `reading` that a continued task found in the cache when it continued."""
    pause_after_prefill: bool = False
    """Nothing beyond `reading` is computed until the gateway sends `Proceed`."""
    is_preempted: bool = False
    """The task gave its cells to others and continues when they fit again."""
    is_suspect: bool = False
    """Logits were NaN while it ran, and it has chosen no token since."""
    response: ResponseBuffer | None = None
    """Holds an answer that leaves in one piece, after its first token; None for any other."""
    awaits_prefix: bool = True
    """It reads nothing before `PrefixSharing` has given it what others have read of its prompt."""
    restoring: HostCacheHit | None = None
    """The copy from which its prefix is coming back."""
    stops: list[int] = field(default_factory=list)
    """Places in `reading` where a step ends so that a checkpoint can be made, in any order."""

    @classmethod
    def of(cls, task: EngineTask, sampler: Sampler, n_cached: int, *, order: int) -> "SlotTask":
        """Begin a task; `n_cached` tokens of its prompt are in the slot."""
        if task.resumed is None:
            generation = TextGeneration.start(task.params)
            generation.truncated = task.truncated
        else:
            generation = task.resumed.generation
        run = cls(task, sampler, generation, time.perf_counter(), n_cached, order=order)
        run.response = ResponseBuffer() if task.is_whole else None
        if task.resumed is not None and task.resumed.partial.tokens:
            run.pending = task.resumed.partial.tokens[-1]
            run.n_cached, run.n_recovered = 0, n_cached
            run.pause_after_prefill = task.resumed.partial.pause_after_prefill
        return run

    def restore_times(self) -> None:
        """Continue the times of the other worker, once all tokens are in the cache again."""
        resumed = self.task.resumed
        if resumed is None or self.first_token_s:
            return
        self.last_token_s = time.perf_counter()
        self.first_token_s = self.last_token_s - resumed.partial.predicted_ms / 1e3
        self.started_s = self.first_token_s - resumed.partial.prompt_ms / 1e3

    @property
    def usage(self) -> Usage:
        """What it has cost so far."""
        return usage_of(self.account)

    @property
    def reported_cached(self) -> int:
        """Cached tokens of the prompt, as reported to the client."""
        resumed = self.task.resumed
        return (
            self.n_cached
            if resumed is None
            else min(resumed.partial.n_cached, len(self.task.prompt))
        )

    @property
    def n_to_read(self) -> int:
        """Tokens that were not in the cache when the task began or continued."""
        return len(self.reading) - self.n_cached - self.n_recovered

    def until_stop(self, start: int, n: int) -> int:
        """Return how many of `n` tokens from `start` on come before the next stop."""
        return min((stop - start for stop in self.stops if start < stop < start + n), default=n)

    @property
    def is_resumed(self) -> bool:
        """Whether a token was chosen before its cells were read: it is the next one.

        It was preempted, or another worker began its answer.
        """
        return self.pending >= 0

    @property
    def n_left(self) -> int:
        """Tokens that may still be generated; -1 without a limit."""
        n_predict = self.task.params.n_predict
        return -1 if n_predict < 0 else max(0, n_predict - self.generation.n_predicted)


@dataclass(slots=True)
class Slot:
    """One slot; used by the engine's thread only."""

    id: int
    n_ctx: int
    state: SlotState = SlotState.IDLE
    tokens: list[int] = field(default_factory=list)
    run: SlotTask | None = None
    last_used: int = 0
    """Number of its last use; the slot with the lowest is the least recently used."""
    salt: str = ""
    """Tenant's part of the namespace."""
    scales: Scales = ()
    """Scales of the adapters with which the tokens were read."""
    n_saved: int = 0
    """Positions saved because tokens share them (self-extend, and images with M-RoPE)."""
    group_start: int = 0
    """First position that no tokens share (self-extend)."""
    n_shared: int = 0
    """Leading tokens whose cells other sequences may hold too: an upper bound."""
    last_params: SamplingParams | None = None
    connection: int = -1
    """Connection (`TaskKey.connection`) of its last task; -1 is none."""
    media: Media = field(default_factory=dict)
    """Images and sounds among the tokens of an idle slot."""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """Places where its tokens can be cut, in their order, if that is not possible anywhere."""
    chain: BlockChain = BlockChain()
    """The prompt that its tokens begin with, in blocks; of a running task the whole one."""
    _last: SlotReport = field(init=False, repr=False)
    """Report that is given while the slot is idle."""

    def __post_init__(self) -> None:
        self._last = SlotReport(id=self.id, is_processing=False)

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens whose cells the sequence has."""
        self.tokens += tokens
        self.n_saved += count_shared(tokens)

    def move(self, state: SlotState) -> None:
        """Change the state; raises `AssertionError` for what is not in `TRANSITIONS`."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"{self!r} cannot become {state.name}")
        self.state = state

    def begin(self, run: SlotTask) -> None:
        """Take a task."""
        self.move(SlotState.PREFILL)
        self.run = run
        run.reading = run.task.prompt if run.task.resumed is None else list(run.task.reading)
        on_device = run.sampler.backend_sampling
        self.last_params = replace(run.task.params, backend_sampling=on_device)
        self.connection = run.task.key.connection

    def started(self, n_known: int) -> Envelope:
        """Return the message of the task's start; `n_known` tokens of its prompt are cached."""
        run = self.active
        n_cached, n_prompt = max(run.n_cached, run.n_recovered, n_known), len(run.task.prompt)
        started = Started(
            slot=self.id,
            n_prompt=n_prompt,
            n_cached=n_cached,
            seed=run.sampler.seed,
            n_reread=len(run.reading) - n_cached if run.is_resumed else 0,
        )
        return Envelope(run.task.key, started)

    def end(self, release: int) -> SlotTask:
        """End the task and keep its tokens as cache; return its state."""
        assert self.run is not None
        report = self._report(self.run)
        self._last = replace(report, is_processing=False, has_next_token=False)
        run, self.run = self.run, None
        self.move(SlotState.IDLE)
        self.last_used = release
        self.media = without_handles(run.task.media, len(self.tokens))
        run.sampler.close()
        return run

    def forget(self) -> int:
        """Empty an idle slot whose sequence is being emptied; return how many tokens it had."""
        assert self.run is None
        n_tokens = len(self.tokens)
        self.tokens.clear()
        self.checkpoints.clear()
        self.media = {}
        self.n_saved = self.group_start = self.n_shared = 0
        return n_tokens

    def preempt(self) -> None:
        """Note that the task has given its cells up; the caller has removed the tokens."""
        run = self.active
        run.is_preempted, run.restoring = True, None
        run.probed.clear()  # it is read again
        if not run.is_resumed:
            run.n_cached = 0
        if self.state is SlotState.DECODE:
            self.move(SlotState.PREFILL)

    @property
    def namespace(self) -> CacheNamespace:
        """Namespace in which its tokens can be used."""
        return self.scales, self.salt

    @property
    def active(self) -> SlotTask:
        """State of the current task; the slot must be busy."""
        assert self.run is not None
        return self.run

    @property
    def n_pos(self) -> int:
        """Position of the next token."""
        return len(self.tokens) - self.n_saved

    @property
    def has_part(self) -> bool:
        """Whether its tokens end within an image or a sound, whose cells others cannot use."""
        return self.run is not None and not are_whole(self.run.task.media, len(self.tokens))

    @property
    def room(self) -> int:
        """Tokens that can be read before the context must be shifted."""
        return self.n_ctx - 1 - len(self.tokens)

    @property
    def n_prompt_left(self) -> int:
        """Tokens to read that are not in the cache yet; the link's thread may ask, too."""
        run = self.run
        return 0 if run is None else max(0, len(run.reading) - len(self.tokens))

    @property
    def is_paused(self) -> bool:
        """Whether all is read and the gateway's `Proceed` is awaited."""
        run = self.run
        return run is not None and run.pause_after_prefill and not self.n_prompt_left

    def timings(self) -> Timings:
        """Times of the current task so far, in milliseconds."""
        run = self.active
        n_predicted = run.generation.n_predicted
        first = run.first_token_s or run.started_s
        return Timings(
            cache_n=run.reported_cached,
            prompt_n=len(run.task.prompt) - run.reported_cached,
            prompt_ms=(first - run.started_s) * 1e3,
            predicted_n=n_predicted,
            predicted_ms=max(0.0, run.last_token_s - first) * 1e3,
            draft_n=run.n_draft,
            draft_n_accepted=run.n_draft_accepted,
        )

    def report(
        self, *, is_speculative: bool = False, render: Callable[[Sequence[int]], str] | None = None
    ) -> SlotReport:
        """Describe the slot for `/slots`; an idle slot reports its last task.

        `render` writes tokens as text; without it the report holds no text of clients.
        """
        known = self._last if self.run is None else self._report(self.run)
        report = replace(known, n_past=len(self.tokens), is_speculative=is_speculative)
        if render is None or report.params is None:
            return report
        prompt = self.tokens if self.run is None else self.run.task.prompt
        return replace(
            report,
            prompt=render(without_placeholders(prompt[: report.n_prompt])),
            generated=render(self.tokens[report.n_prompt :]),
        )

    def _report(self, run: SlotTask) -> SlotReport:
        generation = run.generation
        finish = generation.finish
        n_read = len(run.task.prompt) - run.reported_cached - self.n_prompt_left
        return SlotReport(
            id=self.id,
            is_processing=True,
            task_id=run.task.key.id,
            n_prompt=len(run.task.prompt),
            n_prompt_processed=max(0, n_read),
            n_cached=run.reported_cached,
            n_decoded=generation.n_predicted,
            n_remain=run.n_left,
            has_next_token=finish is None,
            has_new_line=generation.has_new_line,
            finish=finish or "",
            stopping_word=generation.text.stopping_word,
            params=self.last_params,
        )

    def __repr__(self) -> str:
        task = "-" if self.run is None else str(self.run.task.key.id)
        return f"<Slot {self.id} {self.state.name} task={task} n_past={len(self.tokens)}>"
