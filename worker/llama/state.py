"""Copies of a sequence's memory, out of the context and into it.

llama.cpp's functions for files are not used: loading a file that was cut short aborts the process
(llama-context.cpp, `state_seq_load_file`), while wrong bytes from memory are only refused. What
they write after the tokens is the same.
"""

import ctypes
import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from protocol.config.config import WorkerConfig
from protocol.errors import ErrorCode, TaskError
from protocol.scaled_file import split_scale
from worker.engine.sequence_state import NUMBER, Checkpoint, State, spread
from worker.llama import library
from worker.llama.model import can_cut_anywhere, is_recurrent, spare_sequence
from worker.llama.streams import Streams

_IO_MAGIC = 0xAF143CD8
_PREFIX = struct.Struct("<Ii")
"""What stands before a state in memory, but not in a file: a magic number and the sequence."""

_SAMPLE = 1 << 20
_COUNTS = struct.Struct("<II")
"""What a state begins with: the number of streams, 1 in ours, and that of its cells."""
_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_PLACED = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)


class LlamaStates:
    """Implements `worker.engine.sequence_state.SequenceState` over one context."""

    version = int(lib.LLAMA_STATE_SEQ_VERSION)

    def __init__(self, context: Any, config: WorkerConfig, streams: Streams | None) -> None:
        """`streams` are those of a cache that is not unified."""
        self._context = context
        self._streams = streams
        self._memory = lib.llama_get_memory(context)
        model = lib.llama_get_model(context)
        self.needs_checkpoints = not can_cut_anywhere(model)
        is_windowed = self.needs_checkpoints and not is_recurrent(model)
        self._window = int(lib.llama_model_n_swa(model)) if is_windowed else 0
        """Tokens that a layer sees; 0 with recurrent layers, which cannot be cut anywhere."""
        self._has_places = lib.llama_model_rope_type(model) in _PLACED
        n_streams = 1 if config.kv_unified else config.n_slots
        is_plain = not self.needs_checkpoints and self._is_one_cache(n_streams)
        self.n_streams = n_streams if is_plain else 0
        self._spare = spare_sequence(context, config)
        self.can_cut = self._spare > 0 and not self.needs_checkpoints
        is_used = bool(config.slot_save_path)
        self.facts: Mapping[str, str] = _facts(config) if is_used else {}
        self.projector = fingerprint(Path(config.mmproj)) if is_used and config.mmproj else ""

    def copy(self, seq: int) -> State:
        """Return the memory of a sequence as llama.cpp writes it of a unified cache."""
        self._settle(seq)
        data = self._copy(seq)[_PREFIX.size :]
        if self.n_streams <= 1:
            return data
        # The other streams have no cells. What lies before and after is cut off without a copy.
        data = data[NUMBER.size * seq : len(data) - NUMBER.size * (self.n_streams - 1 - seq)]
        NUMBER.pack_into(data, 0, 1)
        return data

    def copy_part(self, seq: int, start: int, end: int) -> State:
        """Return the memory of a part: for as long the spare sequence shares its cells."""
        if start == end:
            return b""
        lib.llama_memory_seq_cp(self._memory, seq, self._spare, start, end)
        try:
            return self._copy(self._spare)
        finally:
            lib.llama_memory_seq_rm(self._memory, self._spare, -1, -1)

    def put_part(self, seq: int, state: State, start: int, end: int) -> bool:
        """Read a copied part into the spare sequence, and let `seq` have of it what it lacks."""
        if start == end:
            return True
        is_read = self._write(self._spare, state)
        lib.llama_memory_seq_cp(self._memory, self._spare, seq, start, end)
        lib.llama_memory_seq_rm(self._memory, self._spare, -1, -1)
        return is_read

    def _is_one_cache(self, n_streams: int) -> bool:
        """Whether the memory, which is empty yet, is one cache: an indexer has one of its own."""
        size = int(lib.llama_state_seq_get_size(self._context, 0))
        return size == _PREFIX.size + NUMBER.size * (1 + n_streams)

    def _copy(self, seq: int) -> memoryview:
        data = self._read(seq)
        if len(data) < _PREFIX.size:
            raise TaskError(ErrorCode.INTERNAL, f"Unable to save slot: {library.last_warnings()}")
        return data

    def _read(self, seq: int, flags: int = 0) -> memoryview:
        size = int(lib.llama_state_seq_get_size_ext(self._context, seq, flags))
        buffer = np.empty(size, np.uint8)
        where = buffer.ctypes.data_as(_BYTES)
        n = int(lib.llama_state_seq_get_data_ext(self._context, where, size, seq, flags))
        return buffer.data[:n]

    def _write(self, seq: int, state: State, flags: int = 0) -> bool:
        """Replace what `flags` name of a sequence; return whether llama.cpp took all of it."""
        buffer = np.frombuffer(state, np.uint8)
        where, size = buffer.ctypes.data_as(_BYTES), len(buffer)
        n = int(lib.llama_state_seq_set_data_ext(self._context, where, size, seq, flags))
        return n == size

    def put(self, seq: int, state: State, n_pos: int) -> bool:
        """Replace a sequence; False if the state does not fit, and the sequence is empty then."""
        if self.n_streams and not are_cells(state, n_pos, has_places=self._has_places):
            lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
            return False
        self._settle(seq)
        parts = (_PREFIX.pack(_IO_MAGIC, seq), *spread(state, self.n_streams, seq))
        is_read, n_past = self._write(seq, b"".join(parts)), self._n_past(seq)
        # All cells of an image stand at its first position.
        is_at_end = 0 < n_past <= n_pos if self._has_places and n_pos else n_past == n_pos
        if is_read and is_at_end:
            return True
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return False

    def checkpoint(self, seq: int) -> State:
        """Return the states of recurrent layers and the cells of sliding windows."""
        self._settle(seq)
        return self._read(seq, _PARTIAL)

    def first_cut(self, seq: int) -> int:
        """Return the end, or where windows are whole: llama.cpp reuses cells that left them."""
        n_past = self._n_past(seq)
        if self._window <= 0:
            return n_past
        first = int(lib.llama_memory_seq_pos_min(self._memory, seq))
        return min(n_past, first + self._window if first > 0 else 0)

    def go_back(self, seq: int, checkpoint: Checkpoint) -> bool:
        """Put those states and windows back, and cut all other cells."""
        self._settle(seq)
        is_read = self._write(seq, checkpoint.state, _PARTIAL)
        is_cut = bool(lib.llama_memory_seq_rm(self._memory, seq, checkpoint.n_pos, -1))
        return is_read and is_cut and self._n_past(seq) == checkpoint.n_pos

    def _settle(self, seq: int) -> None:
        if self._streams is not None:
            self._streams.settle(seq)

    def _n_past(self, seq: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1


def are_cells(state: State, n_pos: int, *, has_places: bool) -> bool:
    """Return whether the cells in a plain cache's state stand at the first `n_pos` positions.

    llama.cpp takes any position. A negative one cannot be removed again: the cell counts as free,
    and stays visible to its sequence when another one writes into it. With `has_places` each cell
    has a place in an image too, and those of one image may share a position. A cell of another
    layout than (position, 1, place, sequence) is left to llama.cpp.
    """
    n_cells = _COUNTS.unpack_from(state)[1] if len(state) >= _COUNTS.size else -1
    width = 6 if has_places else 3
    if n_cells < 0 or len(state) < _COUNTS.size + 4 * width * n_cells:
        return False
    cells = np.frombuffer(state, "<i4", width * n_cells, _COUNTS.size).reshape(n_cells, width)
    if (cells[:, 1] != 1).any():  # the number of its sequences, which llama.cpp checks
        return True
    positions = np.sort(cells[:, 0])
    if has_places:
        return not n_cells or bool(positions[0] >= 0 and positions[-1] < n_pos)
    return n_cells == n_pos and bool((positions == np.arange(n_cells)).all())


def _facts(config: WorkerConfig) -> Mapping[str, str]:
    """Tell what the numbers of a state depend on, beside the tokens."""
    rope = (
        config.rope_scaling, config.rope_freq_base, config.rope_freq_scale, config.yarn_orig_ctx,
        config.yarn_ext_factor, config.yarn_attn_factor, config.yarn_beta_slow,
        config.yarn_beta_fast,
    )  # fmt: skip
    steering = [
        *config.control_vector_layers,
        *(split_scale(t).scale for t in config.control_vector),
    ]
    return {
        "model": fingerprint(Path(config.model)),
        "llama.cpp": library.build(),
        "cache type": f"{config.cache_type_k}/{config.cache_type_v}",
        "RoPE setting": "/".join(map(str, rope)),
        "set of LoRA adapters": _files(config.lora),
        "control vector": f"{_files(config.control_vector)} {steering}",
    }


def _files(texts: tuple[str, ...]) -> str:
    # The scales of adapters belong to each slot; those of control vectors are in the text.
    return " ".join(fingerprint(Path(split_scale(text).path)) for text in texts)


def fingerprint(path: Path) -> str:
    """Name the content of a large file by its size and samples of its beginning, middle and end."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for place in (0, size // 2, max(0, size - _SAMPLE)):
            file.seek(place)
            digest.update(file.read(_SAMPLE))
    return f"{size}-{digest.hexdigest()[:32]}"
