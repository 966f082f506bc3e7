"""Computes embeddings and rerankings in the engine, one batch at a time.

The link opens a job for each task; the engine does one heavy call after another, and each computes
one batch, filled from all jobs in turn. So a request of thousands of inputs delays neither the
streams of the slots nor a small request beside it. Short texts are tokenized on the engine's thread
just before they are computed: it takes little time there, and on the link it would block the
heartbeat. Long ones come tokenized (`LongInputs`).
"""

import time
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from protocol.errors import ErrorCode, TaskError
from protocol.wire.accounts import usage_of
from protocol.wire.messages import Done, Finish, TaskKey, Terminal
from protocol.wire.side_tasks import Embed, Embedded, Rerank
from worker.embedding.inputs import InputReader, LongInputs, MediaInput
from worker.embedding.job import EmbeddingInput, EmbeddingJob, answer_of, no_numbers
from worker.engine.backend import Backend, CacheFull, DecodeFailed, Embedder, EmbeddingPiece
from worker.engine.engine import Engine
from worker.engine.scheduling.budget import StepBudget
from worker.engine.task import EngineJob

MAX_WAITING = 32768
"""Maximum of waiting inputs of all tasks; beyond it a task is refused with a retry hint."""

_RAW = -1
"""No normalization: `Embed.normalize`."""


class EmbeddingBatcher:
    """All embedding and reranking tasks of a worker.

    `open` and `drop` belong to the link's thread, everything else to the engine's.
    """

    def __init__(self, backend: Backend, embedder: Embedder, engine: Engine) -> None:
        self._embedder = embedder
        self._engine = engine
        self._reader = InputReader(backend, embedder)
        self._jobs: deque[EmbeddingJob] = deque()
        self._carried: EmbeddingInput | None = None
        """An input that is partly computed: it did not fit into the last batch."""
        self._budget = StepBudget(
            engine.step_target_s, embedder.n_batch, token_s=backend.prefill_token_s
        )

    def __repr__(self) -> str:
        return f"<EmbeddingBatcher {self._embedder.pooling} jobs={len(self._jobs)}>"

    # ---- the link's thread --------------------------------------------------------------------

    def open(self, key: TaskKey, task: Embed | Rerank | LongInputs) -> None:
        """Accept a task; the engine will send its answer. Raises `TaskError` if it is refused."""
        found = task if isinstance(task, LongInputs) else LongInputs(task, {})
        job = self._job(key, found.task, found.tokens)
        n_waiting = sum(len(queued.inputs) for queued in list(self._jobs) if not queued.is_over)
        if n_waiting and n_waiting + len(job.inputs) > MAX_WAITING:
            raise TaskError(ErrorCode.OVERLOADED, "Too many inputs wait for their embeddings")
        self._jobs.append(job)
        self._call(job)

    def drop(self, key: TaskKey) -> None:
        """Drop a task."""
        self._drop([job for job in list(self._jobs) if job.key == key])

    def drop_all(self, connection: int) -> None:
        """Drop the tasks of a connection."""
        self._drop([job for job in list(self._jobs) if job.key.connection == connection])

    def _drop(self, jobs: Sequence[EmbeddingJob]) -> None:
        for job in jobs:
            job.is_dropped = True
        if jobs:  # their calls are dropped with them, and there may be no other for long
            self._engine.submit(EngineJob(jobs[0].key, self._forget_dropped))

    def _job(
        self, key: TaskKey, task: Embed | Rerank, known: Mapping[int, "array[int]"]
    ) -> EmbeddingJob:
        reader = self._reader
        is_rank = self._embedder.pooling == "rank"
        if isinstance(task, Rerank):
            if not is_rank:
                raise TaskError(
                    ErrorCode.NOT_SUPPORTED, "this model does not rerank: start it with --reranking"
                )
        elif is_rank:
            raise TaskError(
                ErrorCode.NOT_SUPPORTED, "this model makes scores and no embeddings: use /rerank"
            )
        n = len(task.documents if isinstance(task, Rerank) else task.inputs)
        inputs = [
            known[i].tolist if i in known else partial(reader.read, task, i) for i in range(n)
        ]
        normalize = _RAW if isinstance(task, Rerank) else task.normalize
        return EmbeddingJob(key, task, inputs, normalize)

    def open_media(self, key: TaskKey, found: MediaInput) -> None:
        """Accept a task with images or sounds; raises `TaskError` if it is refused."""
        embedder, n = self._embedder, len(found.tokens)
        if not embedder.reads_media:
            message = "this model makes no embeddings of images or sounds"
            raise TaskError(ErrorCode.NOT_SUPPORTED, message)
        self._reader.check_media(n)
        self._engine.submit(EngineJob(key, lambda: self._embed_media(key, found), is_heavy=True))

    # ---- the engine's thread ------------------------------------------------------------------

    def _call(self, job: EmbeddingJob) -> None:
        job_call = EngineJob(job.key, lambda: self._work(job), is_heavy=True, usage=job.usage)
        self._engine.submit(job_call)

    def _work(self, job: EmbeddingJob) -> Terminal | None:
        """Compute one batch of any jobs; answer if this job is complete."""
        self._forget_dropped()
        if not job.is_over:
            self._compute()
        if not job.is_over:
            self._call(job)
            return None
        if job in self._jobs:
            self._forget(job)
        if job.is_dropped:  # while it was computed: `EngineJobs.abort` has not found it
            return Done(finish=Finish.CANCELLED, usage=job.usage())
        if job.error is not None:
            raise job.error
        return answer_of(job, self._embedder.pooling)

    def _embed_media(self, key: TaskKey, found: MediaInput) -> Terminal:
        """Compute an input with media alone, because it takes several batches."""
        embedder, task = self._embedder, found.task
        carried = self._carried
        seq = 1 if carried is not None and carried.seq == 0 else 0
        embedder.adapters.use(self._engine.tasks.scales)
        text_s = len(found.tokens) * self._budget.token_s
        self._engine.progress.expect_media(len(found.media), text_s)
        start = time.perf_counter()
        try:
            vectors = embedder.embed_media(seq, found.tokens, found.media, task.normalize)
        except CacheFull as error:
            message = "Too many inputs wait for their embeddings"
            raise TaskError(ErrorCode.OVERLOADED, message) from error
        except DecodeFailed as error:
            raise TaskError(ErrorCode.INTERNAL, str(error)) from error
        if not vectors:
            raise no_numbers()
        accounts = self._engine.counters.accounts
        account = accounts.open(key)
        self._engine.counters.read(account, len(found.tokens))
        accounts.close(account)
        self._took(len(found.tokens), time.perf_counter() - start)
        is_pooled = embedder.pooling != "none"
        n_vectors = 1 if is_pooled else len(found.tokens)
        return Embedded(
            vectors=(vectors,),
            n_embd=len(vectors) // (4 * n_vectors),
            n_tokens=(len(found.tokens),),
            is_pooled=is_pooled,
            usage=usage_of(account),
        )

    def _forget_dropped(self) -> None:
        carried = self._carried
        if carried is not None and carried.job.is_over:
            if carried.pos:
                self._embedder.forget(carried.seq)
            self._carried = None
        for job in [job for job in list(self._jobs) if job.is_dropped]:
            self._forget(job)

    def _forget(self, job: EmbeddingJob) -> None:
        self._jobs.remove(job)
        if job.account is not None:
            self._engine.counters.accounts.close(job.account)

    def _compute(self) -> None:
        batch = self._plan()
        if not batch:
            return
        pieces = [piece for _, piece in batch]
        self._expect(sum(len(piece.tokens) for piece in pieces))
        start = time.perf_counter()
        try:
            self._choose_adapters(pieces)
            answers = self._embedder.embed(pieces)
        except DecodeFailed as error:
            self._fail(batch, TaskError(ErrorCode.INTERNAL, str(error)))
            return
        except Exception as error:
            self._fail(batch, self._engine.counters.fault(batch[0][0].job.key, error))
            return
        for reading, piece in batch:
            assert reading.job.account is not None
            self._engine.counters.read(reading.job.account, len(piece.tokens))
        self._took(sum(len(piece.tokens) for piece in pieces), time.perf_counter() - start)
        self._engine.counters.computed(len(pieces))
        for (reading, piece), answer in zip(batch, answers, strict=True):
            if piece.is_last:
                reading.job.store(reading.index, answer)

    def _fail(
        self, batch: Sequence[tuple[EmbeddingInput, EmbeddingPiece]], error: TaskError
    ) -> None:
        """End the jobs of a batch that was not computed."""
        for reading, piece in batch:
            reading.job.error = error
            self._embedder.forget(piece.seq)
        self._forget_dropped()  # an input that found no room in this batch stays

    def _choose_adapters(self, pieces: Sequence[EmbeddingPiece]) -> None:
        """Apply the current adapter scales, unless a partly read input began with others."""
        if all(piece.pos == 0 for piece in pieces):
            self._embedder.adapters.use(self._engine.tasks.scales)

    def _expect(self, n: int) -> None:
        """Tell the watchdog how long a call may take, which cannot be divided as a step can."""
        self._engine.progress.expect(n * self._budget.token_s)

    def _took(self, n: int, elapsed_s: float) -> None:
        self._budget.observe(0, n, elapsed_s)
        self._engine.counters.prompt_s += elapsed_s

    def _plan(self) -> list[tuple[EmbeddingInput, EmbeddingPiece]]:
        """Fill a batch from the jobs in turn; the rest of a partly read input comes first."""
        room = self._budget.tokens(self._engine.n_busy)
        batch: list[tuple[EmbeddingInput, EmbeddingPiece]] = []
        free = deque(range(self._embedder.n_seq))
        while free and (room > 0 or not batch):
            reading = self._carried or self._next()
            self._carried = None
            if reading is None:
                break
            n = self._share(reading, room, is_first=not batch)
            if n < reading.n_left:
                self._carried = reading
            if n == 0:
                break
            if reading.seq < 0:
                reading.seq = free[0]
            free.remove(reading.seq)
            batch.append((reading, reading.advance(n)))
            room -= n
            if self._carried is not None:
                break
        return batch

    def _share(self, reading: EmbeddingInput, room: int, *, is_first: bool) -> int:
        """Return how many tokens of an input go into the batch; all or none unless it can split."""
        if self._embedder.can_split:
            return min(room, reading.n_left)
        return reading.n_left if is_first or reading.n_left <= room else 0

    def _next(self) -> EmbeddingInput | None:
        """Tokenize the next input of the next job in turn; None if there is none, or it is refused.

        What is refused may have taken long to tokenize: the next one waits until other work had
        its turn.
        """
        for _ in range(len(self._jobs)):
            job = self._jobs[0]
            self._jobs.rotate(-1)
            if job.is_over or job.n_started == len(job.inputs):
                continue
            index = job.n_started
            job.n_started += 1
            try:
                if job.account is None:
                    job.account = self._engine.counters.accounts.open(job.key)
                tokens = job.inputs[index]()
            except TaskError as error:
                job.error = error
                return None
            except Exception as error:
                job.error = self._engine.counters.fault(job.key, error)
                return None
            job.n_tokens[index] = len(tokens)
            return EmbeddingInput(job, index, tokens)
        return None
