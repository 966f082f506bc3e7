"""Images in prompts: placeholders, planning, reuse; the real libmtmd with a random projector."""

import ctypes
import os
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp.mtmd_cpp as mtmd
import numpy as np
import pytest

from protocol.config.config import WorkerConfig
from protocol.errors import InvalidRequest
from protocol.wire.messages import Done, Failed, Generate, TaskKey
from protocol.wire.sampling import SamplingParams
from tests.cores import threads
from tests.models.mmproj import N_PATCHES, write_mmproj
from tests.models.shallow import shallow_path
from tests.worker.engines import Rig
from tests.worker.llama.media.test_decode_cost import progressive_jpeg
from tests.worker.prompt.read_task import read_task
from worker.engine.backend import BatchRow, CacheFull, DecodeFailed, EmbeddingPiece
from worker.engine.cache.self_extend import SelfExtend
from worker.engine.fake.backend import FAKE_MARKER
from worker.engine.media import MediaPiece, placeholders, text_until, whole_pieces
from worker.engine.scheduling.admission import Admission
from worker.engine.scheduling.budget import StepBudget
from worker.engine.task import EngineTask, Submit
from worker.llama.backend import LlamaBackend
from worker.llama.media import encoder as media_encoder
from worker.llama.media import reader as media_reader
from worker.llama.media.reader import MediaReader
from worker.prompt.prompt import PromptReader


def png(width: int, height: int, shade: int = 100) -> bytes:
    """Write a small picture by hand."""
    row, rows = bytearray(1 + 3 * width), bytearray()
    row[1::3], row[3::3] = bytes(x * 6 % 256 for x in range(width)), bytes([shade]) * width
    for y in range(height):
        row[2::3] = bytes([y * 8 % 256]) * width
        rows += row

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_equal_content_has_equal_placeholders_and_other_content_others() -> None:
    assert placeholders("a", 4) == placeholders("a", 4)
    assert not set(placeholders("a", 4)) & set(placeholders("b", 4))
    assert all(token < 0 for token in placeholders("a", 1000))


def test_a_piece_is_reused_whole_or_not_at_all() -> None:
    media = {5: MediaPiece(4, "a")}
    assert [whole_pieces(media, n) for n in (4, 5, 6, 8, 9, 12)] == [4, 5, 5, 5, 9, 12]


def test_text_is_read_up_to_the_next_piece() -> None:
    media = {5: MediaPiece(4, "a")}
    assert [text_until(media, start, 100) for start in (0, 4, 5, 9)] == [5, 1, 0, 100]


def image_task(rig: Rig, text: str, image: bytes, n: int) -> EngineTask:
    """A task with one image."""
    tokens, media = rig.backend.read_media(text, [image])
    return EngineTask(TaskKey(n), tokens, SamplingParams(n_predict=4, temperature=0.0), media=media)


def test_an_image_is_read_in_its_place_and_found_again() -> None:
    rig = Rig(n_slots=1)
    for n in (1, 2):
        rig.engine.submit(Submit(image_task(rig, f"look {FAKE_MARKER} here", b"x", n)))
        rig.finish()
    other = image_task(rig, f"look {FAKE_MARKER} here", b"y", 3)
    rig.engine.submit(Submit(other))
    rig.finish()
    assert rig.done(1).n_prompt == len("look  here") + 1 + 4
    assert rig.started(2).n_cached == rig.done(1).n_prompt - 1
    assert rig.started(3).n_cached == len("look ") + 1


def test_streams_go_on_while_an_image_waits() -> None:
    rig = Rig(n_slots=2)
    talking = rig.submit("talk", n_predict=20)
    rig.turn()
    rig.engine.submit(Submit(image_task(rig, f"{FAKE_MARKER} and {FAKE_MARKER}"[:18], b"x", 50)))
    rig.finish()
    assert rig.done(talking).n_predicted == 20
    assert rig.done(50).n_predicted == 4


def test_an_image_takes_the_cells_of_idle_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU they stay in the context, so cells may be few while no task runs."""
    rig = Rig(n_slots=2, n_cells=128, n_batch=128)
    monkeypatch.setattr(rig.backend, "is_gpu", True)
    rig.submit("x" * 118)
    rig.finish()
    rig.engine.submit(Submit(image_task(rig, f"{FAKE_MARKER} {FAKE_MARKER}"[:16], b"x", 50)))
    rig.finish()
    assert rig.done(50).n_predicted == 4


def test_a_newer_task_waits_until_its_image_finds_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(n_slots=2, n_cells=128, n_batch=128)
    monkeypatch.setattr(Admission, "_fits", lambda *_: True)  # answers may grow beyond it
    older = rig.submit("y" * 20, n_predict=100)
    while rig.engine.cache.n_cells < 115:
        rig.turn()
    rig.engine.submit(Submit(image_task(rig, f"see {FAKE_MARKER} ok", b"x", 50)))
    rig.finish()
    assert rig.done(older).n_predicted == 100
    assert rig.done(50).n_predicted == 4
    assert rig.engine.counters.n_preempted == 1


@pytest.mark.timeout(10)
@pytest.mark.parametrize("extend", [None, SelfExtend(2, 64)])
def test_the_newest_task_gives_its_cells_to_an_image(
    monkeypatch: pytest.MonkeyPatch, extend: SelfExtend | None
) -> None:
    """With self-extend it cannot go on later: it fails, and once."""
    rig = Rig(n_slots=2, n_cells=256, n_batch=16, self_extend=extend)
    decode_media = rig.backend.decode_media

    def decode(seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        if rig.backend._cells.get(1):
            raise CacheFull
        decode_media(seq, pos, piece, rows)

    monkeypatch.setattr(rig.backend, "decode_media", decode)
    rig.engine.submit(Submit(image_task(rig, f"{'see ' * 10}{FAKE_MARKER} ok", b"x", 50)))
    rig.turn()
    newer = rig.submit("y", n_predict=8, slot=1)
    rig.finish()
    assert rig.done(50).n_predicted == 4
    assert rig.terminals(newer) == 1
    assert isinstance(rig.of(newer)[-1], Done if extend is None else Failed)


@pytest.mark.parametrize(("token_s", "n_rows", "stall_s"), [(100.0, 4, 1200), (0.0, 256, 120)])
def test_an_image_has_time_before_its_worker_counts_as_stuck(
    monkeypatch: pytest.MonkeyPatch, token_s: float, n_rows: int, stall_s: float
) -> None:
    """Rows that attend to each other are one batch, however long it takes."""
    rig, limits = Rig(n_slots=1, n_ctx=512, n_batch=64), []
    decode_media, rig.engine._step._budget.token_s = rig.backend.decode_media, token_s
    monkeypatch.setattr(StepBudget, "observe", lambda *_: None)

    def decode(seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        limits.append(rig.engine.progress.stall_s)
        decode_media(seq, pos, piece, rows)

    monkeypatch.setattr(rig.backend, "decode_media", decode)
    piece = MediaPiece(n_rows, "x", is_undivided=True)
    tokens = [1, 2, *piece.placeholders, 3]
    params = SamplingParams(n_predict=4, temperature=0.0)
    rig.engine.submit(Submit(EngineTask(TaskKey(1), tokens, params, media={2: piece})))
    rig.finish()
    assert limits == [pytest.approx(stall_s)]
    assert rig.engine.progress.stall_s < stall_s


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    """SmolLM2 with a random projector."""
    path = write_mmproj(tmp_path_factory.mktemp("mmproj") / "mmproj.gguf", 576)
    config = WorkerConfig(model=shallow_path(), mmproj=str(path), n_ctx=512, n_threads=threads())
    backend = LlamaBackend(config, lambda _fraction: None)
    yield backend
    backend.close()


@pytest.mark.model
def test_markers_become_pieces_of_the_right_size(seeing: LlamaBackend) -> None:
    marker = seeing.card.media_marker
    assert seeing.card.has_vision
    assert not seeing.card.has_audio
    tokens, media = seeing.read_media(f"Look {marker} at it", [png(40, 30)])
    (start,) = media
    assert media[start].n_pos == N_PATCHES
    assert [token < 0 for token in tokens[start : start + N_PATCHES]] == [True] * N_PATCHES


@pytest.mark.model
def test_a_saved_piece_is_known_again_without_its_picture(seeing: LlamaBackend) -> None:
    marker = seeing.card.media_marker
    images = [png(40, 30), png(40, 30), png(30, 40)]
    _, media = seeing.read_media(f"{marker} and {marker} and {marker}.", images)
    pieces = [media[start] for start in sorted(media)]
    found = seeing.open_pieces([piece.saved for piece in pieces])
    assert found == pieces
    assert [piece.handle for piece in found] == [None] * 3
    assert max(len(piece.saved) for piece in pieces) < 300
    for data in (b"", b"no chunk at all, " * 9, pieces[0].saved[:-3]):
        with pytest.raises(ValueError, match="libmtmd"):
            seeing.open_pieces([data])


@pytest.mark.model
@pytest.mark.parametrize(
    "data", [b"", b"no picture", png(20, 20)[:60], b"\x89PNG\r\n\x1a\n" + b"\0" * 50]
)
def test_what_is_no_picture_is_refused(seeing: LlamaBackend, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="Failed to load image or audio file"):
        seeing.read_media(f"a {seeing.card.media_marker} b", [data])


@pytest.mark.model
def test_a_sound_is_not_measured_for_a_model_without_ears(
    seeing: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_reader, "n_samples", None)
    with pytest.raises(InvalidRequest, match="does not take audio"):
        seeing.read_media(f"a {seeing.card.media_marker} b", [b"\xff" * 1000])


@pytest.mark.model
def test_embeddings_that_are_kept_are_bounded_in_bytes(
    seeing: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeing.clear()
    marker, images = seeing.card.media_marker, [png(40, side) for side in (30, 31, 32)]
    _, media = seeing.read_media(f"{marker}{marker}{marker}.", images)
    pieces = [media[start] for start in sorted(media)]
    one_image = N_PATCHES * 576 * 4
    monkeypatch.setattr(media_encoder, "_KEPT_BYTES", 2 * one_image)
    for number, piece in enumerate(pieces):
        seeing.decode_media(0, number * N_PATCHES, piece, range(N_PATCHES))
    assert seeing._media is not None
    assert list(seeing._media.encoder._known) == [piece.key for piece in pieces[1:]]
    monkeypatch.setattr(media_encoder, "_KEPT_BYTES", 1)
    seeing.clear()
    seeing.decode_media(0, 0, pieces[0], range(N_PATCHES))
    assert list(seeing._media.encoder._known) == [pieces[0].key]
    seeing.clear()


@pytest.mark.model
def test_encoding_leaves_no_thread_behind(seeing: LlamaBackend) -> None:
    """OpenMP keeps a team for each thread that computes, and with two of them none spins."""
    seeing.clear()
    tokens = seeing.tokenize("The sea", add_special=True, parse_special=True)
    seeing.decode([BatchRow(0, 0, tokens, wants_logits=True)])
    before = set(Path("/proc/self/task").iterdir())
    _, media = seeing.read_media(f"{seeing.card.media_marker}.", [png(50, 33)])
    assert seeing._media is not None
    assert len(seeing._media.encoder.take(media[min(media)])) == N_PATCHES * 576
    end = time.monotonic() + 10
    while set(Path("/proc/self/task").iterdir()) - before and time.monotonic() < end:
        time.sleep(0.01)
    assert not set(Path("/proc/self/task").iterdir()) - before
    seeing.clear()


@pytest.mark.model
def test_an_embedding_that_is_no_number_never_comes_into_the_cache(tmp_path: Path) -> None:
    """NaN in the cells of one task would make the logits of all tasks NaN."""
    path = write_mmproj(tmp_path / "mmproj.gguf", 576, bias=float("inf"))
    config = WorkerConfig(model=shallow_path(), mmproj=str(path), n_ctx=512, n_threads=threads())
    backend = LlamaBackend(config, lambda _fraction: None)
    tokens, media = backend.read_media(f"It {backend.card.media_marker} is", [png(40, 30)])
    (start,) = media
    backend.decode([BatchRow(0, 0, tokens[:start], wants_logits=False)])
    with pytest.raises(DecodeFailed, match="not numbers"):
        backend.decode_media(0, start, media[start], range(N_PATCHES))
    backend.close()


@pytest.mark.model
@pytest.mark.parametrize("sample", [float("nan"), float("inf"), 1e38, -1e38])
def test_a_sound_whose_samples_are_no_sound_is_refused(
    seeing: LlamaBackend, sample: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.array([0, -1.5, 40, *[0] * 1021, sample], np.float32)
    data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))

    def load(_reader: MediaReader, file: bytes, _place: int) -> Any:
        return mtmd.mtmd_bitmap_init_from_audio(len(file), data)

    monkeypatch.setattr(MediaReader, "_check", lambda *_: None)
    monkeypatch.setattr(MediaReader, "_load", load)
    prompt = f"a {seeing.card.media_marker} b"
    with pytest.raises(InvalidRequest, match="not numbers between"):
        seeing.read_media(prompt, [b"x" * 1025])
    with pytest.raises(InvalidRequest, match="Failed to tokenize"):  # it has no ears
        seeing.read_media(prompt, [b"x" * 1024])
    with pytest.raises(InvalidRequest, match="too short: 1023 samples"):
        seeing.read_media(prompt, [b"x" * 1023])


def bomb(side: int) -> bytes:
    """Write a black picture of one bit a pixel: 26,000 squared are 82 kB and unfold to 2 GB."""
    rows = zlib.compressobj(1)
    row = b"\0" * (side // 8 + 1)
    packed = b"".join([rows.compress(row) for _ in range(side)]) + rows.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", packed), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


@pytest.mark.model
@pytest.mark.parametrize(("side", "n"), [(11_000, 1), (7100, 2), (1000, 101)])
def test_pictures_that_would_fill_the_memory_are_refused_before_any_is_decoded(
    seeing: LlamaBackend, side: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_reader, "MAX_PIECES", 200)
    monkeypatch.setattr(media_reader.MediaReader, "_load", None)
    with pytest.raises(InvalidRequest, match="the images have more than 100000000 pixels together"):
        seeing.read_media(f"{seeing.card.media_marker}" * n + " b", [bomb(side)] * n)


@pytest.mark.model
@pytest.mark.parametrize("n", [1, 4])
def test_pictures_that_take_long_to_decode_are_refused_before_any_is_decoded(
    seeing: LlamaBackend, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JPEG of a megabyte occupied a thread for four minutes, until the worker ended itself."""
    monkeypatch.setattr(media_reader.MediaReader, "_load", None)
    jpeg = progressive_jpeg(1600, 4000 // n)
    with pytest.raises(InvalidRequest, match="takes more to decode than its size allows"):
        seeing.read_media(f"{seeing.card.media_marker}" * n + " b", [jpeg] * n)


@pytest.mark.model
def test_nothing_that_a_client_sends_is_given_to_another_program(
    seeing: LlamaBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ffmpeg", "ffprobe"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    webp = b"RIFF\x24\0\0\0WEBPVP8 " + b"\0" * 24
    mp4, cut = b"\0\0\0\x18ftypmp42" + b"\0" * 64, b"P6\n10 10\n255\n" + b"\0" * 10
    for data in (webp, mp4, cut, b"no picture" * 10):
        with pytest.raises(InvalidRequest, match="Failed to load image or audio file"):
            seeing.read_media(f"a {seeing.card.media_marker} b", [data])
    assert not (tmp_path / "was-run").exists()


@pytest.mark.model
def test_markers_without_media_and_media_without_markers_are_refused(
    seeing: LlamaBackend,
) -> None:
    reader = PromptReader(seeing, cuts_long=False)
    message = Generate(prompt="no marker", params=SamplingParams(), media=(png(8, 8),))
    with pytest.raises(InvalidRequest, match="0 media markers, but the request has 1"):
        read_task(reader, message)


@pytest.mark.model
def test_embedding_in_pieces_is_embedding_at_once(tmp_path: Path) -> None:
    write_mmproj(tmp_path / "mmproj.gguf", 576)
    config = WorkerConfig(
        model=shallow_path(),
        mmproj=str(tmp_path / "mmproj.gguf"),
        n_ctx=256,
        n_ubatch=32,
        embeddings=True,
        flash_attn="off",
    )
    backend = LlamaBackend(config, lambda _fraction: None)
    embedder = backend.embedder
    assert embedder is not None and embedder.reads_media
    tokens = backend.tokenize("The sea is blue and wide. ", add_special=True, parse_special=True)
    at_once = np.frombuffer(embedder.embed([EmbeddingPiece(0, 0, tokens, True, 2)])[0], np.float32)
    in_pieces = np.frombuffer(embedder.embed_media(1, tokens, {}, 2), np.float32)
    assert at_once @ in_pieces > 0.9999
    marker = backend.card.media_marker
    texts = [backend.read_media(f"Look {marker} at it", [png(40, 30, n)]) for n in (9, 99, 9)]
    vectors = [np.frombuffer(embedder.embed_media(0, *text, 2), np.float32) for text in texts]
    assert vectors[0] @ vectors[2] > 0.9999 > vectors[0] @ vectors[1]
    backend.close()
