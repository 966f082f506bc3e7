"""The engine of the fake worker: echoes the words of the prompt, one a step, without a model.

Messages in, lists of messages out; it knows nothing of sockets.
"""

import dataclasses
import math
import re
import struct
from dataclasses import dataclass, field

from protocol import WIRE_VERSION
from protocol.errors import ErrorCode
from protocol.wire import facts, side_tasks
from protocol.wire import messages as m
from protocol.wire.partial_answer import PartialAnswer
from protocol.wire.sampling import SamplingParams
from tests.envelopes import payloads
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.slot import BlockChain


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """How a fake worker looks and how fast it goes."""

    name: str = "w0"
    model: str = "fake"
    aliases: tuple[str, ...] = ()
    n_slots: int = 2
    n_prefetch: int = 1
    n_ctx: int = 4096
    free_running: bool = True
    """False: nothing is generated until the test calls `step()`."""
    step_s: float = 0.0
    ready: bool = True
    """False: the test says `await worker.ready()` itself."""
    is_held: bool = False
    """It takes only tasks that name it, until the test says `await worker.admit()`."""
    fingerprint: str = ""
    stall_s: float = 10.0
    """How long it may stand still, as it tells the gateway."""
    wire_version: int = WIRE_VERSION
    connection: int = 0
    """Its own number of the connection."""
    defaults: SamplingParams = SamplingParams()
    saves_slots: bool = False
    n_lora: int = 0
    system_prompt: facts.SystemPrompt = facts.SystemPrompt()
    longest_system_prompt: int = 1000
    pooling: str = ""
    """Not empty: it makes embeddings, or with `rank` it reranks."""
    fim_missing: tuple[str, ...] = ()
    media_marker: str = ""
    """Not empty: it takes images."""
    has_audio: bool = False
    """With `media_marker`: it takes sounds, too."""


@dataclass(slots=True)
class _Job:
    """One task in the fake engine."""

    envelope: m.Envelope
    task: m.Generate
    words: list[str]
    slot: int = -1
    n_predicted: int = 0
    finish: m.Finish | None = None
    script: list[m.Delta] | None = None
    """Said instead of the echo, one a step."""

    def __post_init__(self) -> None:
        if not self.words:
            self.finish = m.Finish.NONE

    def go_on(self, partial: PartialAnswer, out: list[m.FrameItem]) -> None:
        """Take what another worker has said for said; say what it has left out of its tokens."""
        self.n_predicted = n = len(partial.tokens)
        if self.script is not None:
            del self.script[:n]
            return
        words = [self.words[i % len(self.words)] for i in range(n)]
        assert partial.tokens == tuple(map(token_of, words)), (
            "these are not the tokens of the answer"
        )
        rest = "".join(words)[partial.n_text :]
        if rest:
            out.append(self.said(m.Delta(text=rest, n_predicted=n)))
        if n:
            self.finish = _finish(self, words[-1])

    def said(self, message: m.TaskMessage) -> m.Envelope:
        """Address a message of the task."""
        return m.Envelope(self.envelope.task, message)


@dataclass(slots=True)
class FakeEngine:
    """The echo: takes messages, gives lists of messages; knows nothing of sockets."""

    options: FakeOptions
    waiting: list[_Job] = field(default_factory=list)
    running: dict[int, _Job] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    n_steps: int = 0
    n_prompt: int = 0
    n_predicted: int = 0
    scales: list[float] = field(default_factory=list)
    """Of the adapters."""
    system: str = ""
    """The system prompt."""
    is_sleeping: bool = False
    """What the heartbeats say; it answers all the same."""
    n_cached: int = 0
    """Tokens of each prompt that it says to have found in its cache."""
    held: CachedBlocks = field(default_factory=CachedBlocks)
    """By task, all that it ever began with."""
    fail_next: m.Failed | None = None
    """The next task that starts, or is rendered, fails so, whatever its id."""
    script_next: tuple[m.Delta, ...] | None = None
    """The next task that starts says this and ends."""

    def __post_init__(self) -> None:
        self.scales = [1.0] * self.options.n_lora

    def take(self, item: m.FrameItem) -> list[m.FrameItem]:
        """Accept one message of the gateway; the answer is what needs no step."""
        if not isinstance(item, m.Envelope):
            return []
        match item.payload:
            case m.Generate() as task:
                self.waiting.append(_Job(item, task, prompt_words(task)))
            case m.Cancel():
                self.cancelled.add(item.task.id)
            case m.TaskMessage() as task:
                answer = self.answer(task)
                return [m.Envelope(item.task, answer)] if answer is not None else []
        return []

    def answer(self, task: m.TaskMessage) -> m.Terminal | None:
        """Answer what needs no slot."""
        match task:
            case m.Tokenize(content=content):
                words = split_words(content if isinstance(content, str) else "")
                pieces = [word.encode() for word in words] if task.with_pieces else ()
                return m.Tokenized.of(list(map(token_of, words)), pieces)
            case m.Detokenize(tokens=tokens):
                return m.Detokenized(content="".join(f"<{t}>" for t in tokens))
            case side_tasks.Render() if self.fail_next is not None:
                failed, self.fail_next = self.fail_next, None
                return failed
            case side_tasks.Render(chat=chat):
                prompt = " ".join(
                    m.content_text(message.get("content")) for message in chat.messages
                )
                n_tokens = len(split_words(prompt)) + sum(map(len, task.media))
                return side_tasks.Rendered(prompt=prompt, n_tokens=n_tokens)
            case side_tasks.Embed() | side_tasks.Rerank():
                return self._embed(task)
            case m.Inspect():
                return m.Inspected(slots=self.reports())
        return self.aside(task)

    def _embed(self, task: side_tasks.Embed | side_tasks.Rerank) -> m.Terminal | None:
        """Answer at once, or never if generation waits for the test too."""
        if not self.options.free_running:
            return None
        if isinstance(task, side_tasks.Rerank):
            scores = tuple(float(len(text)) for text in task.documents)
            return side_tasks.Reranked(scores=scores, n_tokens=len(scores))
        vectors = tuple(vector_of(content, self.options.pooling) for content in task.inputs)
        n_tokens = tuple(len(vector) // 8 for vector in vectors)
        is_pooled = self.options.pooling != "none"
        return side_tasks.Embedded(
            vectors=vectors, n_embd=2, n_tokens=n_tokens, is_pooled=is_pooled
        )

    def aside(self, message: m.TaskMessage) -> m.Terminal | None:
        """Answer what is asked of slots, adapters and the system prompt."""
        match message:
            case side_tasks.SlotAction():
                return self.act(message)
            case side_tasks.SetLora():
                return self.set_lora(message)
            case side_tasks.SetSystemPrompt():
                return self.set_system_prompt(message)
            case side_tasks.EndReasoning(target=target):
                is_running = any(job.envelope.task.id == target for job in self.running.values())
                return side_tasks.ReasoningEnded(is_running=is_running)
        return None

    def act(self, message: side_tasks.SlotAction) -> m.Terminal:
        """Answer at once: a saved slot holds as many tokens as its file's name has letters."""
        if message.filename == "broken":
            text = (
                "Unable to restore slot: No available space in KV cache or invalid slot save file"
            )
            return m.Failed(code=ErrorCode.INVALID_REQUEST, message=text)
        n_tokens = len(message.filename)
        return side_tasks.SlotActed(n_tokens=n_tokens, n_bytes=8 * n_tokens, time_ms=1.5)

    def set_lora(self, message: side_tasks.SetLora) -> m.Terminal:
        if message.scales is not None:
            named = dict(message.scales)
            self.scales = [named.get(i, 0.0) for i in range(self.options.n_lora)]
        adapters = tuple(
            side_tasks.LoraAdapter(id=i, path=f"/lora/{i}.gguf", scale=scale, task_name="t")
            for i, scale in enumerate(self.scales)
        )
        return side_tasks.LoraListed(adapters=adapters)

    def set_system_prompt(self, message: side_tasks.SetSystemPrompt) -> m.Terminal:
        if len(message.prompt) > self.options.longest_system_prompt:
            code = ErrorCode.CONTEXT_EXCEEDED
            return m.Failed(code=code, message="the system prompt is too long")
        self.system = message.prompt
        return side_tasks.SystemPromptSet()

    @property
    def busy(self) -> int:
        return len(self.running)

    def step(self) -> list[m.FrameItem]:
        """Admit what waits, then give every running task one word or its end."""
        out = self._drop_cancelled()
        self._admit(out)
        self.n_steps += 1
        for job in list(self.running.values()):
            self._advance(job, out)
        if payloads(out, m.Terminal):
            out.append(self.heartbeat())
        return out

    def heartbeat(self) -> m.Heartbeat:
        stats = facts.Stats(
            n_prompt=self.n_prompt,
            n_predicted=self.n_predicted,
            prompt_s=self.n_prompt / 1000,
            predicted_s=self.n_predicted / 100,
            n_decode=self.n_steps,
            n_busy=self.n_predicted,
            n_kv=self.options.n_ctx,
        )
        return m.Heartbeat(
            step=self.n_steps,
            busy=self.busy,
            waiting=len(self.waiting),
            stats=stats,
            is_sleeping=self.is_sleeping,
            stall_s=self.options.stall_s,
        )

    def reports(self) -> tuple[facts.SlotReport, ...]:
        jobs = {job.slot: job for job in self.running.values()}
        return tuple(
            facts.SlotReport(id=i, is_processing=i in jobs, task_id=_task_in(jobs.get(i)))
            for i in range(self.options.n_slots)
        )

    def _drop_cancelled(self) -> list[m.FrameItem]:
        dropped = [j for j in [*self.waiting, *self.running.values()] if self._is_cancelled(j)]
        self.waiting = [job for job in self.waiting if job not in dropped]
        for job in dropped:
            self.running.pop(job.slot, None)
        self.cancelled.clear()
        return [_done(job, m.Finish.CANCELLED) for job in dropped]

    def _is_cancelled(self, job: _Job) -> bool:
        return job.envelope.task.id in self.cancelled

    def _admit(self, out: list[m.FrameItem]) -> None:
        for job in list(self.waiting):
            free = [i for i in range(self.options.n_slots) if i not in self.running]
            wanted = job.envelope.slot
            if not free or (wanted >= 0 and wanted not in free):
                continue
            self.waiting.remove(job)
            if self.fail_next is not None:
                out.append(job.said(self.fail_next))
                self.fail_next = None
                continue
            if self.script_next is not None:
                job.script, self.script_next = list(self.script_next), None
            job.slot = wanted if wanted >= 0 else free[0]
            self.running[job.slot] = job
            self.n_prompt += len(job.words)
            n_prompt = len(job.words)
            n_cached = min(self.n_cached, n_prompt)
            self.held.put(job.envelope.task.id, BlockChain(job.task.chain, n_prompt))
            out += self.held.take()
            partial = job.task.partial_answer or PartialAnswer()
            n_reread = n_prompt + len(partial.tokens) - n_cached if partial.tokens else 0
            started = m.Started(
                slot=job.slot, n_prompt=n_prompt, n_cached=n_cached, seed=7, n_reread=n_reread
            )
            out.append(job.said(started))
            job.go_on(partial, out)

    def _advance(self, job: _Job, out: list[m.FrameItem]) -> None:
        is_echoed = job.task.partial_answer is not None and job.task.partial_answer.echoed
        if job.task.echo and not job.n_predicted and not is_echoed:
            n_probs = job.task.params.n_probs
            out.append(job.said(m.Delta(prompt=echoed(job.words, n_probs))))
        if job.script is not None:
            self._recite(job, job.script, out)
        elif job.finish is None:
            word = job.words[job.n_predicted % len(job.words)]
            job.n_predicted += 1
            self.n_predicted += 1
            job.finish = _finish(job, word)
            if job.finish is not m.Finish.WORD:
                tokens = (token_of(word),)
                delta = m.Delta(text=word, tokens=tokens, n_predicted=job.n_predicted)
                out.append(job.said(delta))
        if job.finish is not None:
            del self.running[job.slot]
            out.append(_done(job, job.finish))

    def _recite(self, job: _Job, script: list[m.Delta], out: list[m.FrameItem]) -> None:
        if script:
            job.n_predicted += 1
            delta = script.pop(0)
            tokens = delta.tokens or (job.n_predicted,)
            said = dataclasses.replace(delta, n_predicted=job.n_predicted, tokens=tokens)
            out.append(job.said(said))
        else:
            job.finish = m.Finish.EOS


def split_words(text: str) -> list[str]:
    """Cut a text into words that join to it again."""
    return re.findall(r"\s*\S+|\s+$", text)


def token_of(word: str) -> int:
    """Give every word its stable token id."""
    return sum(word.encode()) % 1000


def prompt_words(task: m.Generate) -> list[str]:
    """The words that a task is answered with: of its prompt, its chat or its gap."""
    if task.chat is not None:
        last = task.chat.messages[-1] if task.chat.messages else {}
        return split_words(m.content_text(last.get("content")))
    if task.infill is not None and not task.prompt:
        return split_words(f"{task.infill.prefix} {task.infill.suffix}")
    if isinstance(task.prompt, str):
        return split_words(task.prompt)
    return [item if isinstance(item, str) else f" t{item}" for item in task.prompt or ()]


def echoed(words: list[str], n_probs: int) -> tuple[facts.TokenProb, ...]:
    """Tell the words of a prompt; each is as likely as the other, and the first unknown."""
    pieces = [word.encode() for word in words]
    return tuple(
        facts.TokenProb(id=token_of(word), piece=piece, p=-0.5, top=((1, piece, -0.5),))
        if i and n_probs
        else facts.TokenProb(id=token_of(word), piece=piece, p=math.nan)
        for i, (word, piece) in enumerate(zip(words, pieces, strict=True))
    )


def _task_in(job: _Job | None) -> int:
    return -1 if job is None else job.envelope.task.id


def _finish(job: _Job, word: str) -> m.Finish | None:
    params = job.task.params
    if word.strip() in params.stop:
        return m.Finish.WORD
    if 0 <= params.n_predict <= job.n_predicted:
        return m.Finish.LIMIT
    if job.n_predicted >= len(job.words) and not params.ignore_eos:
        return m.Finish.EOS
    return None


def _done(job: _Job, finish: m.Finish) -> m.Envelope:
    word = job.words[(job.n_predicted - 1) % len(job.words)].strip() if job.words else ""
    done = m.Done(
        finish=finish,
        stopping_word=word if finish is m.Finish.WORD else "",
        n_prompt=len(job.words),
        n_predicted=job.n_predicted,
        slot=job.slot,
        timings=facts.Timings(
            prompt_n=len(job.words), prompt_ms=1.0, predicted_n=job.n_predicted, predicted_ms=1.0
        ),
    )
    return job.said(done)


def vector_of(content: str | tuple[int | str, ...], pooling: str) -> bytes:
    """Make an embedding of two numbers, the length of the input and a half; one a part for none."""
    n = len(content) if pooling == "none" else 1
    return struct.pack("<2f", float(len(content)), 0.5) * n
