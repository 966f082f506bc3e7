"""Reads the header of a GGUF file, and estimates the size of its model's KV cache."""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.config.config import WorkerConfig
from worker.files.model_file import parts, paths_of

MAGIC = b"GGUF"
BROKEN = "it is cut short or broken"
_VERSIONS = (2, 3)
"""Versions whose counts have 64 bits."""
_SCALARS = "BbHhIif?"
_TYPES = {**dict(enumerate(_SCALARS)), 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
"""Types of values without a fixed size. Source: gguf.h."""
_MAX_ENTRIES = 10_000_000
"""Texts and list entries of a valid file; reading more would take too long."""
_MAX_LIST = 4096
"""Entries of a list that is returned."""
_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "q4_1": 20 / 32,
    "iq4_nl": 18 / 32, "q5_0": 22 / 32, "q5_1": 24 / 32,
}  # fmt: skip
"""Bytes of a cached number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The beginning of a GGUF file; `fault` is why it cannot be used."""

    fault: str = ""
    version: int = 0
    n_tensors: int = 0
    values: Mapping[str, Any]
    size: int = 0
    """Bytes of all parts of the file."""

    def of_model(self, key: str) -> Any:
        """Return a value under the name of the architecture."""
        return self.values.get(f"{self.values.get('general.architecture')}.{key}")


class GgufReader:
    """Reads values from the bytes of a GGUF file, at a moving offset.

    Bytes that are cut short or broken raise `ValueError`, `struct.error`, `OverflowError` or
    `RecursionError`.
    """

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self.data = data
        self.offset = 0
        self._n_texts = 0

    def head(self) -> tuple[int, int, dict[str, Any]]:
        """Read all before the tensors: version, number of tensors, metadata."""
        if self.data[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self.offset = 4
        version, n_tensors, n_values = self.take("I"), self.take("Q"), self.take("Q")
        if version not in _VERSIONS:
            raise ValueError(f"its version is {version}")
        values = {self.text(): self.value(self.take("I")) for _ in range(n_values)}
        return version, n_tensors, values

    def names(self, n_tensors: int) -> set[str]:
        """Read what follows the head: the names of the tensors."""
        found = set()
        for _ in range(n_tensors):
            found.add(self.text())
            n_dims = self.take("I")
            self.offset += 8 * n_dims + 4 + 8  # lengths, type, place
        return found

    def take(self, form: str) -> Any:
        """Read a number of a form of `struct`."""
        value = struct.unpack_from(f"<{form}", self.data, self.offset)[0]
        self.offset += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        """Read a text."""
        self._n_texts += 1
        n = self.take("Q")
        if self._n_texts > _MAX_ENTRIES or self.offset + n > len(self.data):
            raise ValueError(BROKEN)
        self.offset += n
        return self.data[self.offset - n : self.offset].decode(errors="replace")

    def value(self, kind: int) -> Any:
        """Read a value of one of the format's kinds; a long list is skipped and gives None."""
        if kind == _STRING:
            return self.text()
        if kind in _TYPES:
            return self.take(_TYPES[kind])
        if kind != _ARRAY:
            raise ValueError(BROKEN)
        kind, n = self.take("I"), self.take("Q")
        if kind in _TYPES and n > _MAX_LIST:
            self.offset += n * struct.calcsize(f"<{_TYPES[kind]}")
            return None
        values = [self.value(kind) for _ in range(min(n, _MAX_ENTRIES))]
        return values if n <= _MAX_LIST else None


def read_header(path: Path) -> Header:
    """Read the beginning of a model's file; raises `OSError`."""
    with path.open("rb") as file:
        if not file.read(1):
            return Header(fault="it is empty", values={})
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                version, n_tensors, values = GgufReader(data).head()
            except ValueError as error:
                return Header(fault=str(error), values={})
            except (struct.error, OverflowError, RecursionError):
                return Header(fault=BROKEN, values={})
    sizes, lacking = parts(path)
    fault = f"its part {lacking} is missing" if lacking else ""
    return Header(fault=fault, version=version, n_tensors=n_tensors, values=values, size=sum(sizes))


def tensor_names(path: Path) -> set[str]:
    """Return the names of a model's tensors; none if a part of it cannot be read."""
    found: set[str] = set()
    try:
        for part in paths_of(path):
            with (
                part.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                reader = GgufReader(data)
                found |= reader.names(reader.head()[1])
    except (OSError, ValueError, struct.error, OverflowError, RecursionError):
        return set()
    return found


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
