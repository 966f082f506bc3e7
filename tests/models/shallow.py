"""The installed model with its first layers only: its real vocabulary and template, in less time.

For tests that look at what is done with tokens, not at what they mean: a text of such a model makes
no sense, but depends on its prompt, its seed and its cache as any other does.
"""

import mmap
import os
import struct
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from worker.settings.resolve import find_model

N_LAYERS = 4
_Q4_0 = 2
"""llama.cpp's number of the type."""
_N_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Sizes of GGUF's numbers by the number of their type."""
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = 32


@cache
def shallow_path() -> str:
    """Write it once into memory, in the type that llama.cpp computes fastest on a CPU.

    A token takes 1.7 ms of one core, not 3.6. Nothing is left when this process has ended.
    """
    import llama_cpp.llama_cpp as lib

    path = _in_memory()
    params = lib.llama_model_quantize_default_params()
    params.ftype = params.output_tensor_type = params.token_embedding_type = _Q4_0
    params.allow_requantize, params.nthread = True, 1
    with NamedTemporaryFile() as source:
        write_shallow(Path(find_model("")), Path(source.name))
        assert lib.llama_model_quantize(source.name.encode(), path.encode(), params) == 0
    return path


@cache
def exact_path(n_layers: int = N_LAYERS) -> str:
    """Write it once into memory, with the model's own weights."""
    return str(write_shallow(Path(find_model("")), Path(_in_memory()), n_layers))


def _in_memory() -> str:
    return f"/proc/{os.getpid()}/fd/{os.memfd_create('shallow')}"


def write_shallow(source: Path, path: Path, n_layers: int = N_LAYERS) -> Path:
    """Write the first layers of a Llama, and all of it that is no layer."""
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        _, version, n_tensors, n_keys = reader.numbers("<IIQQ")
        keys_at = reader.at
        count_at = [
            at for name, at in (reader.key() for _ in range(n_keys)) if "block_count" in name
        ]
        keys = bytearray(data[keys_at : reader.at])
        struct.pack_into("<I", keys, count_at[0] - keys_at, n_layers)
        tensors = sorted((reader.tensor() for _ in range(n_tensors)), key=lambda one: one[-1])
        start = -(-reader.at // _ALIGNMENT) * _ALIGNMENT
        ends = [one[-1] for one in tensors[1:]] + [len(data) - start]
        infos, parts, n_written = b"", [], 0
        for (name, info, offset), end in zip(tensors, ends, strict=True):
            block = name.split(".")[1]
            if name.startswith("blk.") and int(block) >= n_layers:
                continue
            infos += info + struct.pack("<Q", n_written)
            parts.append(data[start + offset : start + end])
            n_written += end - offset
        head = struct.pack("<4sIQQ", b"GGUF", version, len(parts), n_keys) + keys + infos
        padding = b"\0" * (-len(head) % _ALIGNMENT)
        path.write_bytes(b"".join((head, padding, *parts)))
    return path


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

    def key(self) -> tuple[str, int]:
        """Read a key; returns where its value begins."""
        name, (kind,) = self.text(), self.numbers("<I")
        value_at = self.at
        self._skip(kind)
        return name, value_at

    def _skip(self, kind: int) -> None:
        if kind == _ARRAY:
            kind, count = self.numbers("<IQ")
            if kind != _TEXT:
                self.at += count * _N_BYTES[kind]
                return
            for _ in range(count):
                self._skip(_TEXT)
        elif kind == _TEXT:
            (length,) = self.numbers("<Q")
            self.at += length
        else:
            self.at += _N_BYTES[kind]

    def tensor(self) -> tuple[str, bytes, int]:
        """Read a tensor's name, its description up to the offset, and the offset."""
        begin, name = self.at, self.text()
        (n_dimensions,) = self.numbers("<I")
        self.numbers(f"<{n_dimensions}QI")
        info = self._data[begin : self.at]
        return name, info, self.numbers("<Q")[0]
