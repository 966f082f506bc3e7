"""A desk of embeddings on an engine over the fake backend, driven turn by turn."""

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.config.config import WorkerConfig
from protocol.wire.messages import Delta, Failed, FrameItem, TaskKey, Terminal
from protocol.wire.sampling import SamplingParams
from protocol.wire.side_tasks import Embed, Embedded, Rerank, Reranked
from tests.envelopes import of_task
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.engine import Engine
from worker.engine.engine_config import EngineConfig
from worker.engine.fake.backend import FakeBackend
from worker.engine.fake.embedding import FakeEmbedder
from worker.engine.task import Abort, EngineTask, Submit

N_CTX = 4096


@dataclass
class DeskRig:
    """Engine, desk, and everything that was emitted."""

    pooling: str = "mean"
    n_batch: int = 64
    target_s: float = 10.0
    token_s: float = 0.0
    """What a token takes by the measurement at the start."""
    emitted: list[FrameItem] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = WorkerConfig(
            backend="fake",
            n_slots=2,
            n_ctx=2 * N_CTX,
            n_ubatch=self.n_batch,
            embeddings=True,
            pooling=self.pooling,
        )
        self.backend = FakeBackend(config)
        self.backend.prefill_token_s = self.token_s
        engine_config = EngineConfig(n_slots=2, n_ctx=N_CTX, step_target_s=self.target_s)
        self.engine = Engine(self.backend, engine_config, self._emit)
        embedder = self.backend.embedder
        assert isinstance(embedder, FakeEmbedder)
        self.embedder = embedder
        self.desk = EmbeddingBatcher(self.backend, embedder, self.engine)
        self._ids = itertools.count(1)

    def _emit(self, messages: Sequence[FrameItem]) -> None:
        self.emitted += messages

    def embed(self, *inputs: str | tuple[int | str, ...], normalize: int = 2) -> int:
        """Open an embedding; return its id."""
        key = TaskKey(next(self._ids))
        self.desk.open(key, Embed(inputs=inputs, normalize=normalize))
        return key.id

    def rerank(self, query: str, *documents: str) -> int:
        """Open a reranking; return its id."""
        key = TaskKey(next(self._ids))
        self.desk.open(key, Rerank(query=query, documents=documents))
        return key.id

    def generate(self, n_predict: int) -> int:
        """Let a slot generate beside."""
        params = SamplingParams(n_predict=n_predict, temperature=0.0, ignore_eos=True, stream=True)
        task = EngineTask(TaskKey(next(self._ids)), list(b"some prompt"), params)
        self.engine.submit(Submit(task))
        return task.key.id

    def cancel(self, task_id: int) -> None:
        """Give a task up, as the link does."""
        self.desk.drop(TaskKey(task_id))
        self.engine.submit(Abort(TaskKey(task_id)))

    def turn(self, n: int = 1) -> None:
        """Do turns of the engine; there must be something to do."""
        for _ in range(n):
            self.engine.turn()

    def end(self, task_id: int, limit: int = 1000) -> Terminal:
        """Turn until a task has ended."""
        for _ in range(limit):
            for message in of_task(self.emitted, task_id):
                if isinstance(message, Terminal):
                    return message
            self.turn()
        raise AssertionError(f"{self.desk!r} does not come to an end")

    def vectors(self, task_id: int) -> list[list[float]]:
        """Wait for an embedding."""
        end = self.end(task_id)
        assert isinstance(end, Embedded), end
        return [array("f", data).tolist() for data in end.vectors]

    def scores(self, task_id: int) -> tuple[float, ...]:
        """Wait for a reranking."""
        end = self.end(task_id)
        assert isinstance(end, Reranked), end
        return end.scores

    def failed(self, task_id: int) -> Failed:
        """Wait for a failure."""
        end = self.end(task_id)
        assert isinstance(end, Failed), end
        return end

    def n_deltas(self, task_id: int) -> int:
        """Count what a generation has sent."""
        return sum(isinstance(one, Delta) for one in of_task(self.emitted, task_id))

    def n_ends(self, task_id: int) -> int:
        """Count a task's terminal messages."""
        return sum(isinstance(one, Terminal) for one in of_task(self.emitted, task_id))
