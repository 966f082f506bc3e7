"""Images with M-RoPE: they take more cells than positions, as in all of Qwen's vision models."""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd
import pytest

from protocol.wire.messages import TaskKey
from protocol.wire.sampling import SamplingParams
from protocol.wire.schema import read
from tests.models.qwen2vl import write_qwen2vl, write_qwen2vl_projector
from tests.worker.conftest import serving
from tests.worker.engine.media.test_media import png
from tests.worker.served import Answer, Served
from worker.engine.backend import Backend, BatchRow
from worker.engine.media import MediaPiece, count_positions
from worker.engine.scheduling.policy import MIN_PART
from worker.engine.task import EngineTask
from worker.llama.backend import LlamaBackend

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

WIDE, TALL, LARGE = png(112, 56), png(56, 168, 3), png(560, 420, 7)
N_WIDE, N_TALL, N_LARGE = 4 * 2, 2 * 6, 20 * 15
"""Cells of each, one for 28 pixels square."""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("qwen2vl")
    model = write_qwen2vl(folder / "model.gguf")
    projector = write_qwen2vl_projector(folder / "mmproj.gguf")
    with serving(
        2, model=str(model), mmproj=str(projector), n_ctx=1024, kv_unified=True, cache_branches=2
    ) as served:
        served.engine.cache._host._n_bytes_max = -1
        yield served


def task(served: Served, key: int, text: str, *images: bytes, cached: bool = True) -> EngineTask:
    """A task whose text has a `*` in place of each image."""
    marked = text.replace("*", served.backend.card.media_marker)
    tokens, media = served.backend.read_media(marked, images)
    params = {"temperature": 1.0, "seed": 5, "n_predict": 24, "cache_prompt": cached}
    values = read(SamplingParams(), params)
    return replace(EngineTask(TaskKey(key), tokens, values), media=media)


def ask(served: Served, key: int, text: str, *images: bytes, cached: bool = True) -> Answer:
    return served.run([task(served, key, text, *images, cached=cached)])[0]


def test_an_image_counts_by_its_cells(seeing: Served) -> None:
    asked = task(seeing, 1, "Look: * here", WIDE)
    (piece,) = asked.media.values()
    assert (piece.rows, piece.n_pos) == (N_WIDE, 4)
    assert len(asked.prompt) - count_positions(asked.prompt) == N_WIDE - 4
    assert seeing.run([asked])[0].done.n_prompt == len(asked.prompt)
    slot = next(slot for slot in seeing.engine.slots if slot.tokens)
    assert slot.n_pos == count_positions(slot.tokens) < len(slot.tokens)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("text", "images"),
    [
        ("Look: * here", [WIDE]),
        ("Look: * and * too", [WIDE, TALL]),
        ("* and * is it", [TALL, WIDE]),
    ],
)
def test_what_is_used_again_changes_no_text(seeing: Served, text: str, images: list[bytes]) -> None:
    expected = ask(seeing, 1, text, *images, cached=False).text
    first, again = (ask(seeing, key, text, *images) for key in (2, 3))
    assert first.text == again.text == expected
    assert again.done.n_cached == again.done.n_prompt - 1
    other = ask(seeing, 4, text + "?", *images)
    assert other.done.n_cached == first.done.n_prompt
    assert other.text == ask(seeing, 5, text + "?", *images, cached=False).text


def test_images_in_ram_come_back(seeing: Served) -> None:
    cache = seeing.engine.cache
    expected = ask(seeing, 1, "Look: * here", LARGE, cached=False).text
    ask(seeing, 2, "Look: * here", LARGE)
    while cache.evict():
        pass
    again = ask(seeing, 3, "Look: * here", LARGE)
    assert again.done.n_cached > N_LARGE
    assert again.text == expected


@pytest.mark.parametrize("size", [9, 300])
def test_rows_lie_where_libmtmd_puts_them(seeing: Served, size: int) -> None:
    """What is in the cache is, to the last bit, what its own helper writes."""
    cache, backend = seeing.engine.cache, seeing.backend
    while cache.evict():
        pass
    asked = task(seeing, 1, "Look: * here", LARGE)
    ((start, piece),) = asked.media.items()
    states = []
    for decode in (in_parts, by_its_helper):
        backend.decode([BatchRow(0, 0, asked.prompt[:start], False)])
        decode(backend, piece, start, size)
        states.append(bytes(backend.states.copy(0)))
        backend.remove(0, 0)
    assert states[0] == states[1]


def in_parts(backend: Backend, piece: MediaPiece, start: int, size: int) -> None:
    for first in range(0, piece.rows, size):
        backend.decode_media(0, start, piece, range(first, min(first + size, piece.rows)))


def by_its_helper(backend: LlamaBackend, piece: MediaPiece, start: int, size: int) -> None:
    reader, after = backend._media, lib.llama_pos(0)
    assert reader is not None
    code = mtmd.mtmd_helper_decode_image_chunk(
        reader._context,
        backend._context,
        piece.handle.raw,
        reader.encoder.take(piece).ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        start,
        0,
        size,
        ctypes.byref(after),
        ctypes.cast(0, mtmd.mtmd_helper_post_decode_callback),
        None,
    )
    assert (code, after.value) == (0, start + piece.n_pos)


@pytest.mark.parametrize("images", [[LARGE], [WIDE, LARGE], [LARGE, TALL]])
def test_an_image_that_is_read_in_parts_gives_the_same_text(
    seeing: Served, monkeypatch: pytest.MonkeyPatch, images: list[bytes]
) -> None:
    text = " and ".join("*" * len(images)) + " here"
    whole = ask(seeing, 1, text, *images, cached=False)
    calls, decode = [], seeing.backend.decode_media

    def decode_media(seq: int, pos: int, piece: MediaPiece, rows: range) -> None:
        calls.append(len(rows))
        decode(seq, pos, piece, rows)

    monkeypatch.setattr(seeing.backend, "decode_media", decode_media)
    monkeypatch.setattr(seeing.engine._step._budget, "idle_target_s", 1e-9)
    in_parts = ask(seeing, 2, text, *images, cached=False)
    assert max(calls) < 2 * MIN_PART < N_LARGE
    assert sum(calls) == sum(piece.rows for piece in task(seeing, 3, text, *images).media.values())
    assert in_parts.text == whole.text


def test_a_sequence_may_end_in_an_image(seeing: Served) -> None:
    """As of a task that was cancelled between an image and the text behind it."""
    cache, backend = seeing.engine.cache, seeing.backend
    while cache.evict():
        pass
    asked = task(seeing, 1, "Look: * here", WIDE)
    ((start, piece),) = asked.media.items()
    backend.decode([BatchRow(0, 0, asked.prompt[:start], False)])
    backend.decode_media(0, start, piece, range(piece.rows))
    state = backend.states.copy(0)
    assert backend.states.put(1, state, start + piece.n_pos)
    assert bytes(backend.states.copy(1))[:8] == bytes(state)[:8]
    for seq in (0, 1):
        backend.remove(seq, 0)


@pytest.mark.parametrize("is_gpu", [False, True])
def test_tasks_wait_for_the_cells_of_their_images(
    seeing: Served, monkeypatch: pytest.MonkeyPatch, *, is_gpu: bool
) -> None:
    """With positions alone all would begin at once, and most would fail.

    On a GPU, idle images of others are in the cells.
    """
    monkeypatch.setattr(seeing.backend, "is_gpu", is_gpu)
    asked = [task(seeing, key, f"{key}: * here", png(560, 420, key)) for key in range(1, 8)]
    answers = seeing.run(asked)
    assert [answer.done.n_predicted for answer in answers] == [24] * 7
