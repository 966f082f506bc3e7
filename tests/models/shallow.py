"""The installed model with its first layers and tokens only, and its real template, in less time.

For tests that look at what is done with tokens, not at what they mean: a text of such a model makes
no sense, but depends on its prompt, its seed and its cache as any other does.
"""

import mmap
import os
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from worker.settings.resolve import find_model

N_LAYERS = 3
N_TOKENS = 8192
"""All special ones, all bytes, and frequent words. To load and list the others takes a sixth of a
second, and texts hardly differ."""
N_ALL_TOKENS = 49152
"""For what is attacked by their number, or compared token by token."""
_N_SINGLE = 252
"""Special tokens and bytes; each other token is made by one merge, in the order of the merges."""
_Q4_0 = 2
"""llama.cpp's number of the type."""
_N_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Sizes of GGUF's numbers by the number of their type."""
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = 32
_LENGTH = struct.Struct("<Q")
"""How many bytes a text has; stands before it."""


@cache
def shallow_path(n_tokens: int = N_TOKENS) -> str:
    """Write it once into memory, in the type that llama.cpp computes fastest on a CPU.

    A token takes a fifteenth of the whole model's time. Nothing is left when this process has
    ended.
    """
    import llama_cpp.llama_cpp as lib

    path = _in_memory()
    params = lib.llama_model_quantize_default_params()
    params.ftype = params.output_tensor_type = params.token_embedding_type = _Q4_0
    params.allow_requantize, params.nthread = True, 1
    with NamedTemporaryFile() as source:
        write_shallow(Path(find_model("")), Path(source.name), n_tokens=n_tokens)
        assert lib.llama_model_quantize(source.name.encode(), path.encode(), params) == 0
    return path


@cache
def exact_path(n_layers: int = 4, n_tokens: int = N_ALL_TOKENS) -> str:
    """Write it once into memory, with the model's own weights."""
    return str(write_shallow(Path(find_model("")), Path(_in_memory()), n_layers, n_tokens))


def _in_memory() -> str:
    return f"/proc/{os.getpid()}/fd/{os.memfd_create('shallow')}"


def write_shallow(
    source: Path, path: Path, n_layers: int = N_LAYERS, n_tokens: int = N_TOKENS
) -> Path:
    """Write the first layers and the first tokens of a Llama, and all of it that is neither."""
    kept = {
        "llama.block_count": n_layers,
        "llama.vocab_size": n_tokens,
        "tokenizer.ggml.tokens": n_tokens,
        "tokenizer.ggml.token_type": n_tokens,
        "tokenizer.ggml.merges": n_tokens - _N_SINGLE,
        "token_embd.weight": n_tokens,
    }
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        _, version, n_tensors, n_keys = reader.numbers("<IIQQ")
        keys = b"".join(reader.key(kept) for _ in range(n_keys))
        tensors = sorted((reader.tensor() for _ in range(n_tensors)), key=lambda one: one[-1])
        start = -(-reader.at // _ALIGNMENT) * _ALIGNMENT
        ends = [one[-1] for one in tensors[1:]] + [len(data) - start]
        infos, parts, n_written = b"", [], 0
        for (name, shape, kind, offset), end in zip(tensors, ends, strict=True):
            if name.startswith("blk.") and int(name.split(".")[1]) >= n_layers:
                continue
            n_rows = kept.get(name, shape[-1])
            n_bytes = (end - offset) // shape[-1] * n_rows
            infos += _text(name) + struct.pack(
                f"<I{len(shape)}QIQ", len(shape), *shape[:-1], n_rows, kind, n_written
            )
            parts.append(data[start + offset : start + offset + n_bytes])
            n_written += n_bytes
        head = struct.pack("<4sIQQ", b"GGUF", version, len(parts), n_keys) + keys + infos
        padding = b"\0" * (-len(head) % _ALIGNMENT)
        path.write_bytes(b"".join((head, padding, *parts)))
    return path


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


class _Reader:
    """Walks over the head of a GGUF file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.at = 0
        self._data = data

    def numbers(self, form: str) -> tuple[int, ...]:
        """Read numbers."""
        found: tuple[int, ...] = struct.unpack_from(form, self._data, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self) -> str:
        """Read a text."""
        (length,) = self.numbers("<Q")
        self.at += length
        return self._data[self.at - length : self.at].decode()

    def key(self, kept: Mapping[str, int]) -> bytes:
        """Read a key and its value; return them with what is kept of that number or list."""
        name, (kind,) = self.text(), self.numbers("<I")
        head = _text(name) + struct.pack("<I", kind)
        if kind == _ARRAY:
            kind, count = self.numbers("<IQ")
            n_kept = kept.get(name, count)
            values = self._values(kind, n_kept)
            self._values(kind, count - n_kept)
            return head + struct.pack("<IQ", kind, n_kept) + values
        value = self._values(kind, 1)
        return head + (struct.pack("<I", kept[name]) if name in kept else value)

    def _values(self, kind: int, count: int) -> bytes:
        """Read values as they are written."""
        begin = self.at
        if kind == _TEXT:
            for _ in range(count):
                self.at += _LENGTH.size + _LENGTH.unpack_from(self._data, self.at)[0]
        else:
            self.at += count * _N_BYTES[kind]
        return self._data[begin : self.at]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Read a tensor's name, its shape, its type, and where its data begins."""
        name, (n_dimensions,) = self.text(), self.numbers("<I")
        shape = self.numbers(f"<{n_dimensions}Q")
        kind, offset = self.numbers("<IQ")
        return name, shape, kind, offset
