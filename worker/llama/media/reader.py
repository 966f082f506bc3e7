"""Images and sounds through libmtmd: prompt with markers to pieces, pieces into the KV cache.

Reading a prompt may happen on any thread; decoding belongs to the engine thread.
"""

import ctypes
import os
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import llama_cpp.llama_cpp as lib
import llama_cpp.mtmd_cpp as mtmd

from protocol.config.config import WorkerConfig
from protocol.errors import ConfigError, InvalidRequest
from worker.engine.backend import CacheFull, DecodeFailed
from worker.engine.media import MediaPiece, MediumRefused
from worker.llama import library
from worker.llama.hardware.devices import NO_DEVICE, find
from worker.llama.media.decode_cost import extra_decode_cost
from worker.llama.media.encoder import MediaEncoder
from worker.llama.media.picture import decode_picture
from worker.llama.media.pieces import TEXT, read_piece
from worker.llama.media.rows import EmbeddingBatch, row_positions
from worker.llama.media.size import is_sound, max_sound_s, n_pixels, n_samples
from worker.llama.media.values import check_samples
from worker.llama.model import FLASH_ATTN

MAX_PIXELS = 100_000_000
"""Of all images of a prompt, which are in memory at once."""
MAX_PIECES = 64
"""Images and sounds of a prompt."""

_NO_MEDIUM = "Failed to load image or audio file"
NO_MEDIA = (
    "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
)


def _marker(model: str) -> str:
    """Return the marker of a model, the same in all its workers: a prompt may go to any of them."""
    name = sha256(os.fsencode(model)).hexdigest()[:32]
    return os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{name}__>"


class MediaReader:
    """Owns the projector; knows nothing of slots."""

    def __init__(self, config: WorkerConfig, model: Any, n_ubatch: int) -> None:
        self._n_ubatch = n_ubatch
        self.marker = _marker(config.alias)
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = config.mmproj_offload
        device = config.mmproj_device or next(iter(config.device), "")
        if device == NO_DEVICE:
            params.use_gpu = False
        elif device:
            params.device = find(device, "--mmproj-device")
        params.flash_attn_type = FLASH_ATTN[config.flash_attn]
        params.image_min_tokens = config.image_min_tokens
        params.image_max_tokens = config.image_max_tokens
        params.batch_max_tokens = config.mtmd_batch_max_tokens
        params.n_threads = config.n_threads_batch or config.n_threads
        params.print_timings = False
        params.warmup = config.warmup
        self._marker_bytes = self.marker.encode()
        params.media_marker = self._marker_bytes
        library.forget_log()
        mtmd.mtmd_helper_log_set(library.on_log, None)  # by default, all goes to stderr
        self._context = mtmd.mtmd_init_from_file(os.fsencode(config.mmproj), model, params)
        if not self._context:
            reason = library.last_warnings() or "is it a projector of this model?"
            raise ConfigError(f"cannot load the projector {config.mmproj}: {reason}")
        self.has_vision = bool(mtmd.mtmd_support_vision(self._context))
        self.has_audio = bool(mtmd.mtmd_support_audio(self._context))
        self.encoder = MediaEncoder(self._context, int(lib.llama_model_n_embd_inp(model)))

    def read(self, text: str, media: Sequence[bytes]) -> tuple[list[int], dict[int, MediaPiece]]:
        """Tokenize a text whose markers stand for `media`, in their order; adds BOS as usual."""
        if text.count(self.marker) != len(media):
            raise InvalidRequest(
                f"the prompt has {text.count(self.marker)} media markers, but the request has"
                f" {len(media)} images and sounds",
                param="prompt",
            )
        if len(media) > MAX_PIECES:
            message = f"a prompt may have at most {MAX_PIECES} images and sounds"
            raise InvalidRequest(message, param="prompt")
        self._check(media)
        bitmaps: list[Any] = []
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            for place, data in enumerate(media):
                bitmaps.append(self._bitmap(data, place))
                check_samples(bitmaps[-1], place)
            self._tokenize(text, bitmaps, chunks)
            return self._pieces(chunks)
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            for bitmap in bitmaps:
                mtmd.mtmd_bitmap_free(bitmap)

    def decode(self, piece: MediaPiece, rows: range, context: Any, seq: int, pos: int) -> None:
        """Put rows of a piece, which begins at `pos`, into a sequence, as one batch."""
        embedding = self.encoder.take(piece).reshape(piece.rows, -1)
        positions = row_positions(self._context, piece.handle.raw, pos, rows)
        batch = EmbeddingBatch(embedding[rows.start : rows.stop], positions, seq)
        if piece.is_undivided:
            lib.llama_set_causal_attn(context, False)
        try:
            code = int(lib.llama_decode(context, batch.raw))
        finally:
            if piece.is_undivided:
                lib.llama_set_causal_attn(context, True)
        if code == 1:
            raise CacheFull
        if code != 0:
            raise DecodeFailed(f"decoding media returned {code}", fatal=code < -1)
        if rows.stop == piece.rows:
            piece.handle.embedding = None

    def close(self) -> None:
        """Free the projector; the pieces must be gone."""
        self.encoder.close()
        if self._context:
            mtmd.mtmd_free(self._context)
            self._context = None

    # ---- reading ------------------------------------------------------------------------------

    def _check(self, media: Sequence[bytes]) -> None:
        """Refuse what would fill the memory, before any is decoded."""
        rate = max(int(mtmd.mtmd_get_audio_sample_rate(self._context)), 1)
        longest_s = max_sound_s(media)
        n_samples_left, n_pixels_left = longest_s * rate, float(MAX_PIXELS)
        for place, data in enumerate(media):
            if is_sound(data):
                if not self.has_audio:
                    raise MediumRefused("this model does not take audio", place)
                n = n_samples(data, rate)
                if not n:
                    raise MediumRefused(_NO_MEDIUM, place)
                n_samples_left -= n
                if n_samples_left < 0:
                    message = f"the sounds take more than {longest_s:g} s together"
                    raise MediumRefused(message, place)
                continue
            size = n_pixels(data)
            n_pixels_left -= size
            if not size:
                raise MediumRefused(_NO_MEDIUM, place)
            if not self.has_vision:
                raise MediumRefused("this model does not take images", place)
            if n_pixels_left < 0:
                message = f"the images have more than {MAX_PIXELS} pixels together"
                raise MediumRefused(message, place)
            n_pixels_left -= extra_decode_cost(data, size)
            if n_pixels_left < 0:
                message = "the image takes more to decode than its size allows"
                raise MediumRefused(message, place)

    def _bitmap(self, data: bytes, place: int) -> Any:
        """Decode a file by its magic bytes."""
        bitmap = self._load(data, place)
        mtmd.mtmd_bitmap_set_id(bitmap, sha256(data).hexdigest().encode())
        return bitmap

    def _load(self, data: bytes, place: int) -> Any:
        bitmap = self._sound(data) if is_sound(data) else decode_picture(data)
        if not bitmap:
            raise MediumRefused(_NO_MEDIUM, place)
        return bitmap

    def _sound(self, data: bytes) -> Any:
        raw = (ctypes.c_ubyte * len(data)).from_buffer_copy(data)
        options = mtmd.mtmd_helper_init_opt_default()
        wrapper = mtmd.mtmd_helper_bitmap_init_from_buf_wrapper(
            self._context, raw, len(data), False, options
        )
        return wrapper.bitmap

    def _tokenize(self, text: str, bitmaps: Sequence[Any], chunks: Any) -> None:
        data = text.encode(errors="replace")
        source = mtmd.mtmd_input_text(data, len(data), True, True)
        array = (mtmd.mtmd_bitmap_p_ctypes * len(bitmaps))(*bitmaps)
        code = mtmd.mtmd_tokenize(self._context, chunks, ctypes.byref(source), array, len(bitmaps))
        if code != 0:
            raise InvalidRequest("Failed to tokenize prompt", param="prompt")

    def _pieces(self, chunks: Any) -> tuple[list[int], dict[int, MediaPiece]]:
        tokens: list[int] = []
        pieces: dict[int, MediaPiece] = {}
        seen: Counter[str] = Counter()
        for i in range(int(mtmd.mtmd_input_chunks_size(chunks))):
            chunk = mtmd.mtmd_input_chunks_get(chunks, i)
            if int(mtmd.mtmd_input_chunk_get_type(chunk)) == TEXT:
                n = ctypes.c_size_t(0)
                texts = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
                tokens += [int(texts[k]) for k in range(n.value)]
                continue
            piece = read_piece(self._context, chunk, seen)
            self._check_size(piece, len(pieces))
            pieces[len(tokens)] = piece
            tokens += piece.placeholders
        if tokens and tokens[-1] < 0:
            raise InvalidRequest("a prompt must not end with an image or a sound", param="prompt")
        return tokens, pieces

    def _check_size(self, piece: MediaPiece, place: int) -> None:
        """Refuse what llama.cpp would abort on: such a piece must fit one physical batch."""
        if piece.is_undivided and piece.rows > self._n_ubatch:
            raise MediumRefused(
                f"an image has {piece.rows} tokens, more than --ubatch-size {self._n_ubatch}"
                " allows",
                place,
            )
