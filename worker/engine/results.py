"""Samples decoded rows, decides whether their tasks go on, and writes their messages."""

import time
from collections.abc import Iterable

from protocol.errors import TaskError
from protocol.wire.messages import (
    Delta,
    Done,
    Envelope,
    Finish,
    FrameItem,
    Progress,
    PromptRead,
    TaskMessage,
)
from worker.engine.backend import Backend, BatchRow, NoTokenAllowed, Sampled
from worker.engine.cache.cache import PrefixCache
from worker.engine.cache.cached_blocks import CachedBlocks
from worker.engine.prompt_logprobs import echo, is_probed, probe
from worker.engine.slot import Slot, SlotState, SlotTask
from worker.engine.task import Emit, EngineTask, failed, naming


class Outbox:
    """Messages of the engine's thread until they are sent, in one call of `emit`."""

    def __init__(self, emit: Emit, blocks: CachedBlocks) -> None:
        self._emit = emit
        self._blocks = blocks
        self._messages: list[FrameItem] = []

    def put(self, message: FrameItem) -> None:
        """Add a message."""
        self._messages.append(message)

    def extend(self, messages: Iterable[FrameItem]) -> None:
        """Add messages."""
        self._messages += messages

    def flush(self) -> None:
        """Send all messages, after reports of changes in the cache.

        So when a gateway reads `Started`, it has a report of the blocks that it assumed until then.
        """
        if changes := self._blocks.take():
            self._messages[:0] = changes
        if self._messages:
            messages, self._messages = self._messages, []
            self._emit(messages)


class SampleProcessor:
    """Turns logits into messages; `finished` lists the slots whose tasks have ended."""

    def __init__(self, backend: Backend, cache: PrefixCache, outbox: Outbox, shifts: bool) -> None:
        self._backend = backend
        self._cache = cache
        self.outbox = outbox
        self._counters = cache.counters
        self._shifts = shifts
        self.finished: list[Slot] = []

    def take(self, slot: Slot, index: int, row: BatchRow) -> None:
        """Take one decoded row."""
        if slot.state is SlotState.PREFILL:
            self.progress(slot)
            self.read(slot)
            if is_probed(slot):
                probe(self._backend, slot, index, row)
            if not row.wants_logits:
                self.resume(slot)
                return
            slot.move(SlotState.DECODE)
            self._first(slot, index)
        elif row.is_draft:
            self._verify(slot, index, row)
        else:
            self._next(slot, index)

    def resume(self, slot: Slot) -> None:
        """Continue a resumed task once all its tokens are in the cache."""
        run = slot.active
        if run.is_resumed and slot.n_prompt_left == 0 and not run.pause_after_prefill:
            slot.move(SlotState.DECODE)
            run.restore_times()

    def _verify(self, slot: Slot, index: int, row: BatchRow) -> None:
        """Accept a draft as far as the sampler chooses its tokens.

        Nothing is sampled after the first rejected token, so the sampler's state and its random
        numbers are those of a run without a draft, and so is the text.
        """
        run, drafted = slot.active, row.tokens[1:]
        del slot.tokens[row.pos + 1 :]
        run.n_draft += len(drafted)
        self._next(slot, index, 0)
        n_accepted = 0
        for offset, token in enumerate(drafted, start=1):
            has_ended = bool(self.finished) and self.finished[-1] is slot
            if has_ended or run.pending != token:
                break
            slot.tokens.append(token)
            n_accepted += 1
            run.n_draft_accepted += 1
            self._next(slot, index, offset)
        self._counters.draft_checked(len(drafted), n_accepted)
        if n_accepted < len(drafted):
            self._backend.remove(slot.id, slot.n_pos)

    def _first(self, slot: Slot, index: int) -> None:
        """Choose the first token, unless none is wanted: the prompt is read now."""
        run = slot.active
        self._echo(run)
        if run.task.params.n_predict == 0:
            run.first_token_s = run.last_token_s = time.perf_counter()
            self._counters.prompt_s += run.first_token_s - run.started_s
            self.finished.append(slot)
            self.finish(slot, Finish.LIMIT)
            return
        self._next(slot, index)
        if run.first_token_s:  # otherwise no token could be chosen, and the time is counted
            self._counters.prompt_s += run.first_token_s - run.started_s

    def _echo(self, run: SlotTask) -> None:
        """Send the tokens of the prompt, if the task asked for them."""
        if prompt := echo(run, self._backend.vocabulary):
            self._send(run, Delta(prompt=prompt))

    def _next(self, slot: Slot, index: int, offset: int = -1) -> None:
        """Choose a slot's next token and decide whether its task goes on."""
        run = slot.active
        start = time.perf_counter()
        try:
            sampled = self._backend.sample(index, run.sampler, offset)
        except NoTokenAllowed:
            self.finished.append(slot)
            self.finish(slot, Finish.EOS)
            return
        except TaskError as error:
            self.fail(slot, naming(error, run.task.grammar_field))
            return
        finally:
            self._counters.sample_s += time.perf_counter() - start
        self._accept(slot, run, sampled)

    def _accept(self, slot: Slot, run: SlotTask, sampled: Sampled) -> None:
        vocabulary = self._backend.vocabulary
        now_s = time.perf_counter()
        if run.last_token_s:
            self._counters.predicted_s += now_s - run.last_token_s
        self._counters.predicted(run.account)
        run.pending, run.last_token_s = sampled.token, now_s
        run.first_token_s = run.first_token_s or now_s
        text = run.generation.accept(
            vocabulary.shown(sampled.token, run.task.shown, shows_end=run.task.shows_end),
            is_eog=vocabulary.is_eog[sampled.token],
            is_full=self._is_full(slot, run.task, len(slot.tokens) + 1),
            elapsed_ms=(run.last_token_s - run.first_token_s) * 1e3,
        )
        self._delta(slot, run, text, sampled)
        if run.generation.finish is not None:
            self.finished.append(slot)
            self._end(slot)

    def end_of(self, slot: Slot, task: EngineTask) -> Finish | None:
        """Return why an answer that another worker began is over already; None if it is not."""
        if task.resumed is None or not task.n_resumed:
            return None
        generation = task.resumed.generation
        generation.truncated |= self._shifts and len(task.reading) >= slot.n_ctx
        n_tokens = len(task.prompt) + task.n_resumed
        if generation.finish is None and self._is_full(slot, task, n_tokens, task.n_resumed - 1):
            generation.truncated = True
            return Finish.LIMIT
        return generation.finish

    def _is_full(self, slot: Slot, task: EngineTask, n_tokens: int, n_before: int = -1) -> bool:
        """Return whether the context takes no token after `n_tokens`.

        `n_before` are the tokens of the answer before the last one, by default of the slot's task.
        """
        if not self._shifts or task.media:
            return n_tokens >= slot.n_ctx
        # A shifted context is never full, so an answer without a limit ends at the training length.
        n_train = self._backend.card.n_ctx_train
        n_before = slot.active.generation.n_predicted if n_before < 0 else n_before
        return 0 < n_train <= len(task.prompt) + n_before and task.params.n_predict < 0

    def progress(self, slot: Slot) -> None:
        """Report how far a prompt is read, if the task asked for that."""
        run = slot.active
        if not run.task.params.return_progress or run.task.n_resumed:
            return
        # 0 before anything was computed, as in llama-server.
        elapsed_s = time.perf_counter() - run.started_s if len(slot.tokens) > run.n_cached else 0.0
        progress = Progress(
            total=len(run.task.prompt),
            cached=run.reported_cached,
            processed=len(slot.tokens),
            time_ms=elapsed_s * 1e3,
        )
        self._send(run, progress)

    def read(self, slot: Slot) -> None:
        """Report the cost of the prompt so far, by which the gateway charges the tenant."""
        cost = slot.active.usage
        reported = PromptRead(n_read=cost.n_read, n_cached=cost.n_cached, is_paused=slot.is_paused)
        self._send(slot.active, reported)

    def _send(self, run: SlotTask, message: TaskMessage) -> None:
        self.outbox.put(Envelope(run.task.key, message))

    def _delta(self, slot: Slot, run: SlotTask, text: str, sampled: Sampled | None = None) -> None:
        if sampled is None and not text:
            return
        tokens = (sampled.token,) if sampled else ()
        probs = (sampled.prob,) if sampled and sampled.prob else ()
        if run.response is not None and run.generation.n_predicted > run.task.n_resumed + 1:
            now_s = run.last_token_s
            run.response.add(text, tokens, probs, now_s)
            if run.response.is_due(now_s):
                self._buffered(run)
            return
        delta = Delta(
            text=text,
            tokens=tokens,
            sampler_state=run.sampler.state,
            probs=probs,
            n_predicted=run.generation.n_predicted,
            timings=slot.timings() if run.task.params.timings_per_token else None,
        )
        self._send(run, delta)

    def _buffered(self, run: SlotTask) -> None:
        """Send what was held of an answer that leaves in one piece."""
        if run.response is None:
            return
        delta = run.response.take(run.generation.n_predicted, run.sampler.state)
        if delta is not None:
            self._send(run, delta)

    def _end(self, slot: Slot) -> None:
        """Send what was held of an answer, and the terminal message."""
        self._buffered(slot.active)
        self._send(slot.active, self._done(slot))

    def _done(self, slot: Slot) -> Done:
        run, generation = slot.active, slot.active.generation
        assert generation.finish is not None
        timings = slot.timings()
        n_longest = len(slot.tokens) + run.n_shifted
        self._counters.n_tokens_max = max(self._counters.n_tokens_max, n_longest)
        return Done(
            finish=generation.finish,
            stopping_word=generation.text.stopping_word,
            truncated=generation.truncated,
            has_new_line=generation.has_new_line,
            prompt=run.task.text,
            grammar=run.task.params.grammar if run.task.text else "",
            generation_prompt=run.task.params.generation_prompt if run.task.text else "",
            n_prompt=len(run.task.prompt),
            n_cached=run.reported_cached,
            n_predicted=generation.n_predicted,
            n_past=len(slot.tokens),
            slot=slot.id,
            timings=timings,
            biases=run.sampler.biases,
            stops=run.task.params.stop,
            backend_sampling=run.sampler.backend_sampling,
            n_stop_tokens=self._n_stop_tokens(run),
            usage=run.usage,
        )

    def _n_stop_tokens(self, run: SlotTask) -> int:
        word = run.generation.text.stopping_word
        if not word or not run.task.params.n_probs:
            return 0
        return len(self._backend.tokenize(word, add_special=False, parse_special=False))

    def fail(self, slot: Slot, error: TaskError) -> None:
        """End a task without a result and empty its slot, whose cells may be wrong."""
        self._unread(slot.active)
        self.outbox.put(failed(slot.active.task.key, error, slot.active.usage))
        self._cache.cut(slot, 0)
        if slot not in self.finished:
            self.finished.append(slot)

    def _unread(self, run: SlotTask) -> None:
        """Count the time of a prompt that will not be read to its end."""
        if not run.first_token_s:
            self._counters.prompt_s += time.perf_counter() - run.started_s

    def finish(self, slot: Slot, finish: Finish) -> None:
        """End a slot's task: send the text that was held back and the terminal message."""
        run, generation = slot.active, slot.active.generation
        if generation.finish is None:
            self._unread(run)
            self._delta(slot, run, generation.end(finish))
        self._end(slot)
