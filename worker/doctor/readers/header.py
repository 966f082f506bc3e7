"""Reads the header of a GGUF file, and estimates the memory that its model needs."""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.config.config import WorkerConfig
from worker.doctor.finding import Finding, fail, mib, ok
from worker.settings.model_file import parts

MODEL = "model"
_BIG_VERSIONS = (2, 3)
_SCALARS = "BbHhIif?"
_TYPES = {**dict(enumerate(_SCALARS)), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST = 10_000_000
"""Most entries of a valid file; reading more would take too long."""
_KEPT = 4096
_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32,
    "iq4_nl": 18 / 32, "q5_0": 22 / 32, "q5_1": 24 / 32,
}  # fmt: skip
"""Bytes of a cached number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The beginning of a GGUF file; `fault` says what is wrong with it."""

    fault: str = ""
    version: int = 0
    n_tensors: int = 0
    values: Mapping[str, Any]
    size: int = 0
    """Bytes of all parts of the file."""

    def of_model(self, key: str) -> Any:
        """Return a value under the name of the architecture."""
        return self.values.get(f"{self.values.get('general.architecture')}.{key}")


class _HeaderReader:
    """Reads values from a mapped file, at a moving offset."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4
        self._n = 0

    def take(self, form: str) -> Any:
        value = struct.unpack_from(f"<{form}", self._data, self._at)[0]
        self._at += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        self._n += 1
        n = self.take("Q")
        if self._n > _MOST or self._at + n > len(self._data):
            raise ValueError("it is cut short or broken")
        self._at += n
        return self._data[self._at - n : self._at].decode(errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.take(_TYPES[kind])
        kind, n = self.take("I"), self.take("Q")
        if kind in _TYPES and n > _KEPT:
            self._at += n * struct.calcsize(f"<{_TYPES[kind]}")
            return None
        values = [self.value(kind) for _ in range(min(n, _MOST))]
        return values if n <= _KEPT else None


def read_header(path: Path) -> Header:
    """Read the beginning of a model's file; `OSError` is the caller's."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            return Header(fault="it does not begin with GGUF", values={})
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _HeaderReader(data)
            try:
                version, n_tensors, n_values = reader.take("I"), reader.take("Q"), reader.take("Q")
                if version not in _BIG_VERSIONS:
                    return Header(fault=f"its version is {version}", values={})
                values = {reader.text(): reader.value(reader.take("I")) for _ in range(n_values)}
            except (ValueError, KeyError, struct.error, OverflowError, RecursionError):
                return Header(fault="it is cut short or broken", values={})
    sizes, lacking = parts(path)
    fault = f"its part {lacking} is missing" if lacking else ""
    return Header(fault=fault, version=version, n_tensors=n_tensors, values=values, size=sum(sizes))


def judge_model(path: str, header: Header) -> Finding:
    """Judge whether a file is a model that llama.cpp can read."""
    if header.fault:
        mend = "fetch it again: compare its size and checksum with the source's"
        return fail(MODEL, f"{path} is not a usable GGUF file: {header.fault}", mend)
    what = header.values.get("general.architecture", "unknown architecture")
    name = header.values.get("general.name", "")
    text = f"{path}: {what} {name}, {header.n_tensors} tensors, {mib(header.size)}"
    if not header.n_tensors:
        return fail(MODEL, f"{text}: it is a vocabulary without a model", "name the model's file")
    return ok(MODEL, text)


def cache_bytes(header: Header, worker: WorkerConfig) -> int:
    """Return an upper estimate of a worker's KV cache in bytes; 0 if the file lacks facts."""
    try:
        return _cache_bytes(header, worker)
    except TypeError:  # texts where numbers belong
        return 0


def _cache_bytes(header: Header, worker: WorkerConfig) -> int:
    n_layers = header.of_model("block_count") or 0
    n_embd, n_head = header.of_model("embedding_length"), header.of_model("attention.head_count")
    n_kv = header.of_model("attention.head_count_kv") or n_head
    n_ctx = worker.n_ctx or header.of_model("context_length") or 0
    if isinstance(n_head, list):
        n_head = max(n_head, default=0)
    if not n_layers or not n_embd or not n_head or not n_ctx:
        return 0
    heads = sum(n_kv) if isinstance(n_kv, list) else n_kv * n_layers
    size = n_embd / n_head
    key = header.of_model("attention.key_length") or size
    value = header.of_model("attention.value_length") or size
    a_token = key * _BYTES[worker.cache_type_k] + value * _BYTES[worker.cache_type_v]
    return int(n_ctx * heads * a_token)
