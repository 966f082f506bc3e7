"""State of an embedding or reranking task: its inputs, how far each is read, its answer."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from protocol.errors import ErrorCode, InvalidRequest, TaskError
from protocol.wire.accounts import usage_of
from protocol.wire.facts import Usage
from protocol.wire.messages import TaskKey, Terminal
from protocol.wire.side_tasks import Embed, Embedded, Rerank, Reranked
from worker.engine.backend import EmbeddingPiece

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Maximum size of the vectors of one task; as JSON they are five times as long."""

_NOTHING = b""


@dataclass(slots=True, eq=False)
class EmbeddingJob:
    """One task: its inputs, which are read in order, and their vectors."""

    key: TaskKey
    task: Embed | Rerank
    inputs: Sequence[Callable[[], list[int]]]
    normalize: int
    n_started: int = 0
    n_done: int = 0
    n_bytes: int = 0
    account: memoryview | None = None
    """Counts what was computed; None before anything was read."""
    vectors: list[bytes] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)
    error: TaskError | None = None
    is_dropped: bool = False
    """Whether the task was cancelled."""

    def __post_init__(self) -> None:
        self.vectors = [_NOTHING] * len(self.inputs)
        self.n_tokens = [0] * len(self.inputs)

    def usage(self) -> Usage:
        """Return what it has cost so far."""
        return usage_of(self.account) if self.account is not None else Usage()

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to compute."""
        return self.is_dropped or self.error is not None or self.n_done == len(self.inputs)

    def store(self, index: int, vectors: bytes) -> None:
        """Store the vectors of one input."""
        self.vectors[index] = vectors
        self.n_done += 1
        if not vectors:
            self.error = no_numbers()
        self.n_bytes += len(vectors)
        if self.n_bytes > MAX_ANSWER_BYTES:
            limit = MAX_ANSWER_BYTES // 1024**2
            message = f"the embeddings would take more than {limit} MiB: send fewer inputs at once"
            self.error = InvalidRequest(message, param="input")


def no_numbers() -> TaskError:
    """Return the error of an input for which the model has computed what is not a number."""
    return TaskError(ErrorCode.INTERNAL, "the model's answer holds what is not a number")


@dataclass(slots=True)
class EmbeddingInput:
    """One tokenized input of a job, computed up to `pos`."""

    job: EmbeddingJob
    index: int
    tokens: list[int]
    seq: int = -1
    pos: int = 0

    @property
    def n_left(self) -> int:
        """Number of tokens still to compute."""
        return len(self.tokens) - self.pos

    def advance(self, n: int) -> EmbeddingPiece:
        """Take the next `n` tokens."""
        tokens = self.tokens[self.pos : self.pos + n]
        is_last = n == self.n_left
        piece = EmbeddingPiece(self.seq, self.pos, tokens, is_last, self.job.normalize)
        self.pos += n
        return piece


def answer_of(job: EmbeddingJob, pooling: str) -> Terminal:
    """Return the terminal message of a completed job."""
    task, vectors = job.task, job.vectors
    if isinstance(task, Rerank):
        return Reranked(
            # In a model with several classes the first value is the score.
            scores=tuple(struct.unpack_from("<f", vector)[0] for vector in vectors),
            n_tokens=sum(job.n_tokens),
            usage=job.usage(),
        )
    is_pooled = pooling != "none"
    n_vectors = len(vectors) if is_pooled else sum(job.n_tokens)
    return Embedded(
        vectors=tuple(vectors),
        n_embd=sum(map(len, vectors)) // (4 * max(1, n_vectors)),
        n_tokens=tuple(job.n_tokens),
        is_pooled=is_pooled,
        usage=job.usage(),
    )
