"""How requests of embeddings end that fail, are given up, or stand beside such ones."""

from collections.abc import Sequence

import pytest

from protocol.errors import ErrorCode
from protocol.wire.messages import Done, Failed, Finish, TaskKey
from protocol.wire.side_tasks import Embed
from tests.envelopes import payload_of
from tests.worker.desks import DeskRig
from tests.worker.embedding.test_embedding import expected
from worker.embedding.job import EmbeddingJob
from worker.engine.backend import EmbeddingPiece
from worker.engine.fake.embedding import FakeEmbedder
from worker.engine.task import AbortAll, Stop


def _no_memory(_embedder: FakeEmbedder, _pieces: Sequence[EmbeddingPiece]) -> list[bytes]:
    raise MemoryError


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_an_exception_while_a_batch_is_computed_ends_what_is_in_it(
    pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = DeskRig(pooling=pooling)
    first, second = rig.embed("a", "x" * 60), rig.embed("b")
    with monkeypatch.context() as patch:
        patch.setattr(FakeEmbedder, "embed", _no_memory)
        rig.turn()
    assert rig.failed(first).message == "internal error: MemoryError"
    assert rig.failed(second).message == "internal error: MemoryError"
    assert rig.vectors(rig.embed("c")) == [expected("c")]
    assert "jobs=0" in repr(rig.desk)
    assert rig.engine.counters.n_faults == 1


def test_an_exception_while_an_input_is_read_ends_its_own_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = DeskRig()
    tokenize = rig.backend.tokenize

    def read(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if text == "bad":
            raise MemoryError
        return tokenize(text, add_special=add_special, parse_special=parse_special)

    monkeypatch.setattr(rig.backend, "tokenize", read)
    good, bad = rig.embed("a"), rig.embed("b", "bad")
    assert rig.vectors(good) == [expected("a")]
    assert rig.failed(bad).message == "internal error: MemoryError"
    assert "jobs=0" in repr(rig.desk)


def test_a_key_that_no_gateway_gives_fails_its_own_request_alone() -> None:
    rig = DeskRig()
    good = rig.embed("a")
    rig.desk.open(TaskKey(2**64 - 1), Embed(inputs=("b",)))
    assert rig.vectors(good) == [expected("a")]
    assert rig.failed(2**64 - 1).code is ErrorCode.INTERNAL
    assert "jobs=0" in repr(rig.desk)


def test_a_request_may_come_while_the_engine_looks_through_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = DeskRig()
    first, later = rig.embed("a"), list[int]()

    def is_dropped(_job: EmbeddingJob) -> bool:
        if not later:  # the link's thread gets the interpreter's lock
            later.append(0)
            later.append(rig.embed("b"))
        return False

    monkeypatch.setattr(EmbeddingJob, "is_dropped", property(is_dropped, lambda _job, _value: None))
    assert rig.vectors(first) == [expected("a")]
    assert rig.vectors(later[1]) == [expected("b")]


def test_a_cancelled_request_ends_once_and_computes_nothing_more() -> None:
    rig = DeskRig(pooling="last")
    long = rig.embed("x" * 500, *["y" * 60] * 20)
    rig.turn(2)
    n_before = len(rig.embedder.batches)
    rig.cancel(long)
    end = rig.end(long)
    assert isinstance(end, Done)
    assert end.finish is Finish.CANCELLED
    assert rig.vectors(rig.embed("z")) == [expected("z")]
    assert len(rig.embedder.batches) == n_before + 1
    assert not rig.embedder.cells
    assert rig.n_ends(long) == 1


@pytest.mark.parametrize("kind", ["embedding", "reranking"])
def test_a_request_that_is_cancelled_while_it_is_computed_ends_as_cancelled(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rig = DeskRig(pooling="mean" if kind == "embedding" else "rank")
    texts = ["x" * 40] * 3
    task = rig.embed(*texts) if kind == "embedding" else rig.rerank("query", *texts)
    embed = FakeEmbedder.embed

    def cancelled(embedder: FakeEmbedder, pieces: Sequence[EmbeddingPiece]) -> list[bytes]:
        rig.cancel(task)
        return embed(embedder, pieces)

    monkeypatch.setattr(FakeEmbedder, "embed", cancelled)
    end = rig.end(task)
    assert isinstance(end, Done) and end.finish is Finish.CANCELLED
    assert end.usage.n_read > 0
    assert rig.engine.counters.n_faults == 0
    assert rig.n_ends(task) == 1


@pytest.mark.parametrize("is_lost", [True, False])
def test_nothing_is_kept_of_a_request_that_is_given_up_until_another_one_comes(
    is_lost: bool,
) -> None:
    rig = DeskRig(pooling="last")
    gone = rig.embed(*["x" * 200] * 9)
    rig.turn(2)
    assert rig.embedder.cells
    n_free = len(rig.engine.counters.accounts._free)
    if is_lost:
        rig.desk.drop_all(0)
        rig.engine.submit(AbortAll(0))
    else:
        rig.cancel(gone)
    rig.turn()
    assert "jobs=0" in repr(rig.desk)
    assert not rig.embedder.cells
    assert len(rig.engine.counters.accounts._free) == n_free + 1


def test_a_lost_gateway_leaves_nothing_behind() -> None:
    rig = DeskRig()
    gone = rig.embed(*["x" * 60] * 9)
    rig.turn(2)
    rig.desk.drop_all(0)
    rig.engine.submit(AbortAll(0))
    assert rig.vectors(rig.embed("a")) == [expected("a")]
    assert rig.n_ends(gone) == 0
    assert "jobs=0" in repr(rig.desk)


def test_a_worker_that_stops_fails_what_waits() -> None:
    rig = DeskRig()
    waiting = rig.embed(*["x" * 60] * 9)
    rig.turn()
    rig.engine.submit(Stop())
    rig.engine.run()
    assert isinstance(payload_of(rig.emitted[-1]), Failed)
    assert rig.n_ends(waiting) == 1


def test_an_input_that_found_no_room_in_a_batch_that_fails_is_computed_in_the_next() -> None:
    rig = DeskRig(n_batch=64)
    failing, waiting = rig.embed("[[fail]]" + "x" * 40), rig.embed("y" * 40)
    rig.turn()
    assert rig.failed(failing).code is ErrorCode.INTERNAL
    assert rig.vectors(waiting) == [expected("y" * 40)]
