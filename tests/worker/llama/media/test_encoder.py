"""The thread that encodes images, over a libmtmd that answers when it is told to."""

import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from worker.engine.backend import DecodeFailed
from worker.engine.media import MediaPiece
from worker.llama.media import encoder as module
from worker.llama.media.encoder import MediaEncoder

N_EMBD = 2
_LIMIT_S = 10


class Handle:
    """Stands for a chunk of libmtmd."""

    def __init__(self, raw: int) -> None:
        self.raw = raw
        self.embedding: Any = None


class HeldMtmd:
    """Encodes when `gate` is open; chunk 0 fails."""

    def __init__(self) -> None:
        self.gate, self.begun = threading.Event(), threading.Event()
        self.encoded: list[int] = []
        self.threads: set[str] = set()
        self._output = (ctypes.c_float * 8)()

    def mtmd_encode_chunk(self, _: Any, raw: int) -> int:
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        assert self.gate.wait(_LIMIT_S)
        self.encoded.append(raw)
        self._output[0] = raw
        return 0 if raw else 1

    def mtmd_get_output_embd(self, _: Any) -> Any:
        return ctypes.cast(self._output, ctypes.POINTER(ctypes.c_float))


@pytest.fixture
def mtmd(monkeypatch: pytest.MonkeyPatch) -> HeldMtmd:
    held = HeldMtmd()
    monkeypatch.setattr(module, "mtmd", held)
    return held


@pytest.fixture
def encoder(mtmd: HeldMtmd) -> Iterator[MediaEncoder]:
    one = MediaEncoder(None, N_EMBD)
    yield one
    mtmd.gate.set()
    one.close()


def piece(number: int) -> MediaPiece:
    return MediaPiece(4, f"image {number}", handle=Handle(number))


def test_one_piece_is_encoded_at_a_time_on_another_thread(
    encoder: MediaEncoder, mtmd: HeldMtmd
) -> None:
    assert encoder.started_s == 0
    for number in (1, 2, 1):
        encoder.begin(piece(number))
        assert not encoder.is_ready(piece(number))
    assert mtmd.begun.wait(_LIMIT_S)
    assert encoder.started_s > 0
    mtmd.gate.set()
    assert encoder.take(piece(1)).tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert encoder.is_ready(piece(1))
    assert mtmd.encoded == [1]
    assert mtmd.threads == {"encode-media"}


def test_what_was_not_begun_is_encoded_when_it_is_taken(
    encoder: MediaEncoder, mtmd: HeldMtmd
) -> None:
    mtmd.gate.set()
    encoder.begin(piece(1))
    assert encoder.take(piece(2))[0] == 2
    assert encoder.take(piece(1))[0] == 1
    assert mtmd.encoded == [1, 2]
    assert encoder.started_s == 0


def test_a_failure_is_told_once(encoder: MediaEncoder, mtmd: HeldMtmd) -> None:
    mtmd.gate.set()
    for _ in range(2):
        with pytest.raises(DecodeFailed, match="encoding media failed"):
            encoder.take(piece(0))
    assert mtmd.encoded == [0, 0]
    assert encoder.take(piece(1))[0] == 1


def test_the_latest_embeddings_are_kept(
    encoder: MediaEncoder, mtmd: HeldMtmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    mtmd.gate.set()
    monkeypatch.setattr(module, "_KEPT_BYTES", 2 * 4 * N_EMBD * 4)
    for number in (1, 2, 1, 3, 1, 2):
        encoder.take(piece(number))
    assert mtmd.encoded == [1, 2, 3, 2]


def test_what_is_encoded_stays_until_it_is_read_however_many_follow(
    encoder: MediaEncoder, mtmd: HeldMtmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two that do not fit would push each other out for ever."""
    mtmd.gate.set()
    monkeypatch.setattr(module, "_KEPT_BYTES", 1)
    first = piece(1)
    encoder.take(first)
    assert [encoder.take(piece(number))[0] for number in (2, 3)] == [2, 3]
    assert encoder.is_ready(first)
    assert encoder.take(first)[0] == 1
    assert mtmd.encoded == [1, 2, 3]
