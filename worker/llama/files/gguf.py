"""Reading the plain tensors of a small GGUF file: float32 vectors, as control vectors are.

llama.cpp has no call that loads a control vector; its tools read the file themselves, as this
module does. Every offset is checked, so that a truncated file gives an error message.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from protocol.errors import ConfigError
from protocol.process.named_file import read_named_bytes

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

_MAGIC = b"GGUF"
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_F32 = 0
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
_MAX_BYTES = 1 << 30


class _GgufReader:
    """Reads values from the bytes of a file, at a moving offset."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.offset = 0

    def scalar(self, form: str) -> Any:
        value = struct.unpack_from(f"<{form}", self.data, self.offset)[0]
        self.offset += struct.calcsize(f"<{form}")
        return value

    def text(self) -> str:
        n = self.scalar("Q")
        end = self.offset + n
        if end > len(self.data):
            raise ValueError("a text goes beyond its end")
        value = self.data[self.offset : end].decode(errors="replace")
        self.offset = end
        return value

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            item, n = self.scalar("I"), self.scalar("Q")
            if n > len(self.data):
                raise ValueError("a list goes beyond its end")
            for _ in range(n):
                self.value(item)
            return None
        if kind not in _SCALARS:
            raise ValueError(f"it has a value of the unknown kind {kind}")
        return self.scalar(_SCALARS[kind])


def read_vectors(path: Path) -> dict[str, Vector]:
    """Return the tensors of a file by name; raises `ConfigError` unless all are float32 vectors."""
    try:
        return _vectors(_GgufReader(read_named_bytes(path, _MAX_BYTES)))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (struct.error, RecursionError) as error:
        raise ConfigError(f"{path} is not a complete GGUF file") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a usable GGUF file: {error}") from error


def _vectors(reader: _GgufReader) -> dict[str, Vector]:
    if reader.data[:4] != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    reader.offset = 4
    version, n_tensors, n_values = reader.scalar("I"), reader.scalar("Q"), reader.scalar("Q")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}")
    values = {reader.text(): reader.value(reader.scalar("I")) for _ in range(n_values)}
    places = [_place(reader) for _ in range(n_tensors)]
    alignment = values.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError("its alignment is wrong")
    start = -(-reader.offset // alignment) * alignment
    return {name: _vector(reader.data, start + offset, n) for name, n, offset in places}


def _place(reader: _GgufReader) -> tuple[str, int, int]:
    """Read where a tensor is: name, number of elements, offset."""
    name, n_dims = reader.text(), reader.scalar("I")
    if n_dims != 1:
        raise ValueError(f"tensor {name} is not a vector")
    n, kind, offset = reader.scalar("Q"), reader.scalar("I"), reader.scalar("Q")
    if kind != _F32:
        raise ValueError(f"tensor {name} is not float32")
    return name, n, offset


def _vector(data: bytes, start: int, n: int) -> Vector:
    if n <= 0 or start + 4 * n > len(data):
        raise ValueError("a tensor goes beyond its end")
    return np.frombuffer(data, np.dtype("<f4"), n, start).astype(np.float32)
