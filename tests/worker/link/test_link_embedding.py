"""Embeddings between a gateway and a worker: asked, cancelled, and where there are none."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import ErrorCode
from protocol.wire import messages as m
from protocol.wire.side_tasks import Embed, Embedded, Rerank, Reranked
from tests.envelopes import of_task
from tests.worker.link.pair import Pair, generate
from worker.embedding import inputs
from worker.embedding.batcher import EmbeddingBatcher
from worker.engine.fake.backend import FakeBackend


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[Pair]:
    """A worker whose model is not loaded yet."""
    pair = Pair(f"ipc://{tmp_path}/wire")
    yield pair
    pair.close()


@pytest.fixture
def plain(loading: Pair) -> Pair:
    """A worker without embeddings."""
    loading.attach()
    loading.until(m.Ready)
    return loading


@pytest.fixture
def embedding(loading: Pair) -> Pair:
    """A worker with them, whose batches take a while."""
    config = WorkerConfig(backend="fake", embeddings=True, n_ubatch=64, fake_step_ms=5)
    backend = FakeBackend(config)
    assert backend.embedder is not None
    loading.attach(EmbeddingBatcher(backend, backend.embedder, loading.engine))
    loading.until(m.Ready)
    return loading


def test_vectors_come_back_over_the_wire(embedding: Pair) -> None:
    embedding.gateway.send(m.Envelope(m.TaskKey(1), Embed(inputs=("a", (98, "c")))))
    (answer,) = embedding.until(Embedded)
    assert isinstance(answer, Embedded)
    assert answer.n_tokens == (2, 2)
    assert [len(vector) for vector in answer.vectors] == [4 * answer.n_embd] * 2
    assert embedding.link.is_idle


def test_a_cancelled_request_ends_and_the_next_is_served(embedding: Pair) -> None:
    many = m.Envelope(m.TaskKey(1), Embed(inputs=("x" * 60,) * 500))
    embedding.gateway.send(
        many, m.Envelope(m.TaskKey(1), m.Cancel()), m.Envelope(m.TaskKey(2), Embed(inputs=("a",)))
    )
    embedding.until(Embedded)
    (done,) = embedding.until(m.Done)
    assert isinstance(done, m.Done)
    assert done.finish is m.Finish.CANCELLED
    assert of_task(embedding.gateway.heard, 1) == [done]


def test_a_wrong_input_is_answered_and_not_fatal(embedding: Pair) -> None:
    embedding.gateway.send(m.Envelope(m.TaskKey(1), Embed(inputs=("x" * 600,))))
    embedding.gateway.send(m.Envelope(m.TaskKey(2), Rerank(query="q", documents=("d",))))
    failures = embedding.until(m.Failed, 2)
    assert all(isinstance(one, m.Failed) for one in failures)
    embedding.gateway.send(m.Envelope(m.TaskKey(3), Embed(inputs=("a",))))
    embedding.until(Embedded)


TEXTS = ("a", "b" * 200, "c" * 99)
LONG_TEXT = "d" * 300


@pytest.mark.parametrize(
    ("setting", "asked", "too_long"),
    [
        ("embeddings", Embed(inputs=TEXTS), Embed(inputs=(LONG_TEXT,))),
        ("reranking", Rerank(query="", documents=TEXTS), Rerank(query="", documents=(LONG_TEXT,))),
    ],
)
def test_a_long_input_is_tokenized_before_the_engine_gets_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    asked: Embed | Rerank,
    too_long: Embed | Rerank,
) -> None:
    """One of 512 kB took 0.4 s, in which no stream went on, and was refused then."""
    monkeypatch.setattr(inputs, "LONG", 100)
    threads: dict[int, str] = {}
    tokenize = FakeBackend.tokenize

    def noted(self: FakeBackend, text: str, **options: bool) -> list[int]:
        if text:  # the empty query is read on both threads
            threads[len(text)] = threading.current_thread().name
        return tokenize(self, text, **options)

    pair = Pair(f"ipc://{tmp_path}/wire", n_ubatch=256, **{setting: True})
    try:
        assert pair.backend.embedder is not None
        pair.attach(EmbeddingBatcher(pair.backend, pair.backend.embedder, pair.engine))
        pair.until(m.Ready)
        monkeypatch.setattr(FakeBackend, "tokenize", noted)
        pair.gateway.send(m.Envelope(m.TaskKey(1), asked), m.Envelope(m.TaskKey(2), too_long))
        (answer,) = pair.until(Embedded if setting == "embeddings" else Reranked)
        (refused,) = pair.until(m.Failed)
    finally:
        pair.close()
    assert {n for n, name in threads.items() if name.startswith("prepare-")} == {200, 300}
    assert {1, 99} < threads.keys()
    assert answer.usage.n_read >= 300
    assert "is too large to process" in refused.message


def test_a_worker_without_embeddings_says_so_and_goes_on(plain: Pair) -> None:
    plain.gateway.send(m.Envelope(m.TaskKey(1), Embed(inputs=("a",))), generate(2, "hello"))
    (failed,) = plain.until(m.Failed)
    assert isinstance(failed, m.Failed)
    assert failed.code is ErrorCode.NOT_SUPPORTED
    plain.until(m.Done)
