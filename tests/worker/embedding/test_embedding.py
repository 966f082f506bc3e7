"""How embeddings and rerankings are shared out over the calls of the engine."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from protocol.errors import ErrorCode, TaskError
from protocol.wire.messages import TaskKey
from protocol.wire.side_tasks import Embed, Embedded
from tests.worker.desks import DeskRig
from worker.embedding.batcher import MAX_WAITING
from worker.embedding.inputs import MediaInput
from worker.embedding.job import MAX_ANSWER_BYTES, EmbeddingJob
from worker.engine.adapters import Adapter, Scales
from worker.engine.backend import EmbeddingPiece
from worker.engine.fake.backend import BOS, FAKE_MARKER
from worker.engine.fake.embedding import FAKE_EMBD, FakeEmbedder, vector


def expected(text: str, normalize: int = 2) -> list[float]:
    """The fake's vector of a text on its own."""
    return array("f", vector([BOS, *text.encode()], FAKE_EMBD, normalize)).tolist()


def test_vectors_come_in_the_order_of_the_inputs() -> None:
    rig = DeskRig()
    texts = [f"text {i} {'x' * (i % 7)}" for i in range(30)]
    assert rig.vectors(rig.embed(*texts)) == [expected(text) for text in texts]


def test_each_vector_is_normalized_as_its_own_request_says() -> None:
    rig = DeskRig()
    raw, scaled = rig.embed("a", normalize=-1), rig.embed("a", normalize=2)
    assert rig.vectors(raw) == [expected("a", -1)]
    assert rig.vectors(scaled) == [expected("a", 2)]


def test_an_input_without_numbers_fails_its_own_request_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = DeskRig()
    embed = FakeEmbedder.embed
    monkeypatch.setattr(
        FakeEmbedder,
        "embed",
        lambda self, pieces: [
            b"" if ord("b") in piece.tokens else one
            for piece, one in zip(pieces, embed(self, pieces), strict=True)
        ],
    )
    bad, good = rig.embed("a", "b"), rig.embed("c")
    assert rig.failed(bad).code is ErrorCode.INTERNAL
    assert rig.vectors(good) == [expected("c")]


def test_small_inputs_share_a_batch_also_with_those_of_others() -> None:
    rig = DeskRig()
    first, second = rig.embed("a", "b"), rig.embed("c")
    rig.vectors(first)
    assert rig.embedder.batches == [(2, 2, 2)]
    assert rig.vectors(second) == [expected("c")]
    assert len(rig.embedder.batches) == 1


def test_every_batch_counts_as_a_decode_call_of_as_many_busy_slots() -> None:
    rig = DeskRig()
    rig.vectors(rig.embed("a", "b"))
    counters = rig.engine.counters
    assert (counters.n_decode, counters.n_busy) == (1, 2)
    assert counters.n_predicted == 0


def test_no_batch_is_larger_than_the_model_takes_at_once() -> None:
    rig = DeskRig(n_batch=64)
    rig.vectors(rig.embed(*["x" * 40] * 5, *["y"] * 20))
    assert all(sum(batch) <= 64 for batch in rig.embedder.batches)
    assert sum(map(len, rig.embedder.batches)) == 25


def test_a_slot_gets_its_step_after_every_batch() -> None:
    rig = DeskRig()
    text = rig.generate(n_predict=200)
    rig.turn(2)
    many = rig.embed(*["x" * 60] * 50)
    before = rig.n_deltas(text)
    rig.turn(20)
    assert len(rig.embedder.batches) == 20
    assert rig.n_deltas(text) - before == 20
    assert len(rig.vectors(many)) == 50


def test_batches_are_small_while_a_slot_decodes() -> None:
    rig = DeskRig(n_batch=512, target_s=0.0)
    rig.vectors(rig.embed("x" * 100))  # the speed is known from now on
    rig.generate(n_predict=1000)
    rig.turn(2)
    rig.embedder.batches.clear()
    rig.vectors(rig.embed(*["abcdef"] * 8))
    assert max(map(sum, rig.embedder.batches)) <= 16


def test_a_small_request_overtakes_a_large_one() -> None:
    rig = DeskRig()
    large = rig.embed(*["x" * 60] * 100)
    rig.turn(3)
    small = rig.embed("y")
    rig.vectors(small)
    assert len(rig.embedder.batches) < 10
    assert rig.n_ends(large) == 0
    assert len(rig.vectors(large)) == 100


@pytest.mark.parametrize("pooling", ["mean", "cls", "none"])
def test_an_input_that_must_stay_whole_is_refused_if_it_cannot(pooling: str) -> None:
    rig = DeskRig(pooling=pooling, n_batch=64)
    assert isinstance(rig.end(rig.embed("x" * 63)), Embedded)
    failed = rig.failed(rig.embed("a", "x" * 64))
    assert failed.code is ErrorCode.INVALID_REQUEST
    assert failed.message == (
        "input (65 tokens) is too large to process. increase the physical batch size "
        "(current batch size: 64)"
    )


def test_an_input_is_read_in_pieces_where_only_its_last_token_counts() -> None:
    rig = DeskRig(pooling="last", n_batch=64)
    texts = ["a" * 300, "b", "c" * 100]
    assert rig.vectors(rig.embed(*texts)) == [expected(text) for text in texts]
    assert all(sum(batch) <= 64 for batch in rig.embedder.batches)
    assert not rig.embedder.cells
    too_long = rig.failed(rig.embed("x" * 4095))
    assert too_long.code is ErrorCode.CONTEXT_EXCEEDED
    assert too_long.detail == {"n_prompt_tokens": 4096, "n_ctx": 4096}


def test_of_inputs_that_are_too_long_one_is_tokenized_between_two_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may take a third of a second, and streams wait meanwhile."""
    rig = DeskRig()
    tokenized: list[int] = []
    tokenize = rig.backend.tokenize

    def counted(text: str, **options: bool) -> list[int]:
        tokenized.append(len(text))
        return tokenize(text, **options)

    monkeypatch.setattr(rig.backend, "tokenize", counted)
    running = rig.generate(1000)
    rig.turn(2)
    long = [rig.embed("x" * 4095) for _ in range(20)]
    good = rig.embed("a")
    most = 0
    while not rig.n_ends(good):
        before, n_before = rig.n_deltas(running), len(tokenized)
        rig.turn()
        assert rig.n_deltas(running) > before
        most = max(most, len(tokenized) - n_before)
    assert most == 1
    assert rig.vectors(good) == [expected("a")]
    assert all(rig.failed(one).code is ErrorCode.INVALID_REQUEST for one in long)


def test_without_pooling_every_token_has_a_vector() -> None:
    rig = DeskRig(pooling="none")
    end = rig.end(rig.embed("abc", (7, 8)))
    assert isinstance(end, Embedded)
    assert (end.is_pooled, end.n_embd, end.n_tokens) == (False, FAKE_EMBD, (4, 2))
    assert [len(data) for data in end.vectors] == [4 * 4 * FAKE_EMBD, 2 * 4 * FAKE_EMBD]


@pytest.mark.parametrize(
    ("content", "message"),
    [((), "Input content cannot be empty"), ((1, 9999), "Prompt contains invalid tokens")],
)
def test_one_bad_input_fails_its_request_alone(
    content: tuple[int | str, ...], message: str
) -> None:
    rig = DeskRig()
    bad, good = rig.embed("a", content, "b"), rig.embed("c")
    assert rig.failed(bad).message == message
    assert rig.vectors(good) == [expected("c")]


def test_a_failed_batch_fails_those_in_it_and_nobody_later() -> None:
    rig = DeskRig()
    bad = rig.embed("[[fail]]")
    assert rig.failed(bad).code is ErrorCode.INTERNAL
    assert rig.vectors(rig.embed("a")) == [expected("a")]


def test_an_answer_beyond_all_measure_is_refused() -> None:
    job = EmbeddingJob(TaskKey(1), Embed(inputs=("a", "b")), [list, list], normalize=2)
    job.store(0, b"x" * MAX_ANSWER_BYTES)
    assert not job.is_over
    job.store(1, b"xxxx")
    assert job.error is not None
    assert job.error.code is ErrorCode.INVALID_REQUEST
    assert "send fewer inputs at once" in job.error.message


def test_what_waits_is_bounded() -> None:
    rig = DeskRig()
    first = rig.embed(*["a"] * MAX_WAITING)
    with pytest.raises(TaskError) as caught:
        rig.embed("b")
    assert caught.value.code is ErrorCode.OVERLOADED
    rig.cancel(first)
    assert rig.vectors(rig.embed("b")) == [expected("b")]


def test_documents_are_scored_in_their_order() -> None:
    rig = DeskRig(pooling="rank")
    documents = ("one", "two", "three")
    together = rig.scores(rig.rerank("query", *documents))
    alone = [rig.scores(rig.rerank("query", document))[0] for document in documents]
    assert list(together) == alone
    assert len(set(alone)) == 3


def test_a_pair_is_written_as_the_model_was_trained_to_see_it() -> None:
    rig = DeskRig(pooling="rank")
    rig.embedder.rank_template = "Q:{query} D:{document}"
    with_template = rig.scores(rig.rerank("{document}", "d"))
    same = array("f", vector(list(b"Q:{document} D:d"), 1, -1)).tolist()
    assert list(with_template) == same


def test_a_model_does_only_what_its_pooling_is_for() -> None:
    with pytest.raises(TaskError) as caught:
        DeskRig().rerank("q", "d")
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    with pytest.raises(TaskError) as caught:
        DeskRig(pooling="rank").embed("a")
    assert caught.value.code is ErrorCode.NOT_SUPPORTED
    task = Embed(inputs=("a",), media=(b"x",))
    rig = DeskRig()
    rig.embedder.reads_media = False
    with pytest.raises(TaskError, match="no embeddings of images"):
        rig.desk.open_media(TaskKey(1), MediaInput(task, [1], {}))


class NotedAdapters:
    """Keeps which scales were used, and after how many batches."""

    loaded: Sequence[Adapter] = (Adapter("a", 1.0),)

    def __init__(self, embedder: FakeEmbedder) -> None:
        self._embedder = embedder
        self.used: list[tuple[int, Scales]] = []

    def use(self, scales: Scales) -> None:
        """Note them."""
        self.used.append((len(self._embedder.batches), scales))


def test_embeddings_are_made_with_the_standing_scales() -> None:
    rig = DeskRig()
    rig.embedder.adapters = noted = NotedAdapters(rig.embedder)
    rig.engine.tasks.scales = (0.5,)
    rig.vectors(rig.embed("ab"))
    rig.engine.tasks.scales = (0.0,)
    rig.vectors(rig.embed("ab"))
    assert noted.used == [(0, (0.5,)), (1, (0.0,))]


def test_an_input_is_read_to_its_end_with_the_scales_that_it_began_with() -> None:
    rig = DeskRig(pooling="last", n_batch=32)
    rig.embedder.adapters = noted = NotedAdapters(rig.embedder)
    rig.engine.tasks.scales = (0.5,)
    task = rig.embed("x" * 90)
    rig.turn()
    rig.engine.tasks.scales = (0.0,)
    rig.vectors(task)
    assert len(rig.embedder.batches) == 3
    assert noted.used == [(0, (0.5,))]


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_an_input_with_an_image_is_computed_alone(pooling: str) -> None:
    rig = DeskRig(pooling=pooling)
    other = rig.embed("a", "b")
    task = Embed(inputs=("see",), media=(b"x",))
    tokens, media = rig.backend.read_media(f"see {FAKE_MARKER} it", [b"x"])
    rig.desk.open_media(TaskKey(99), MediaInput(task, tokens, media))
    answer = rig.end(99)
    assert isinstance(answer, Embedded)
    assert answer.n_tokens == (len(tokens),)
    n_vectors = 1 if pooling == "mean" else len(tokens)
    assert len(answer.vectors[0]) == 4 * FAKE_EMBD * n_vectors
    assert len(rig.vectors(other)) == 2


def test_an_input_with_an_image_must_fit() -> None:
    rig = DeskRig()
    task = Embed(inputs=("see",), media=(b"x",))
    tokens, media = rig.backend.read_media("y" * 5000 + FAKE_MARKER, [b"x"])
    with pytest.raises(TaskError, match="is too large to process"):
        rig.desk.open_media(TaskKey(99), MediaInput(task, tokens, media))


def test_a_long_input_on_a_slow_machine_has_time_before_its_worker_counts_as_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, limits, embed = DeskRig(n_batch=512, token_s=0.02), [], FakeEmbedder.embed

    def watched(embedder: FakeEmbedder, pieces: Sequence[EmbeddingPiece]) -> list[bytes]:
        limits.append(rig.engine.progress.stall_s)
        return embed(embedder, pieces)

    monkeypatch.setattr(FakeEmbedder, "embed", watched)
    rig.vectors(rig.embed("x" * 99))
    rig.vectors(rig.embed("x"))
    assert limits == [pytest.approx(20 * 100 * 0.02), 10.0]


def test_images_of_an_input_have_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, limits, embed = DeskRig(token_s=0.01), [], FakeEmbedder.embed_media

    def watched(embedder: FakeEmbedder, seq: int, *args: Any) -> bytes:
        limits.append(rig.engine.progress.stall_s)
        return embed(embedder, seq, *args)

    monkeypatch.setattr(FakeEmbedder, "embed_media", watched)
    task = Embed(inputs=("see",), media=(b"x", b"y"))
    tokens, media = rig.backend.read_media(FAKE_MARKER * 2, [b"x", b"y"])
    rig.desk.open_media(TaskKey(99), MediaInput(task, tokens, media))
    rig.engine.turn()
    assert limits == [pytest.approx(3 * (2 * 40 + len(tokens) * 0.01))]
