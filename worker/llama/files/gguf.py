"""Reading the plain tensors of a small GGUF file: float32 vectors, as control vectors are.

llama.cpp has no call that loads a control vector; its tools read the file themselves, as this
module does. Every offset is checked, so that a truncated file gives an error message.
"""

import struct
from pathlib import Path

import numpy as np

from protocol.errors import ConfigError
from protocol.named_file import read_named_bytes
from worker.files.gguf_header import GgufReader

Vector = np.ndarray[tuple[int], np.dtype[np.float32]]

_F32 = 0
"""GGML_TYPE_F32."""
_ALIGNMENT = "general.alignment"
_DEFAULT_ALIGNMENT = 32
"""GGUF_DEFAULT_ALIGNMENT of gguf.h, in bytes."""
_MAX_BYTES = 1 << 30
"""Of a control vector's file."""


def read_vectors(path: Path) -> dict[str, Vector]:
    """Return the tensors of a file by name; raises `ConfigError` unless all are float32 vectors."""
    try:
        return _vectors(read_named_bytes(path, _MAX_BYTES))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (struct.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} is not a complete GGUF file") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a usable GGUF file: {error}") from error


def _vectors(data: bytes) -> dict[str, Vector]:
    reader = GgufReader(data)
    _, n_tensors, values = reader.head()
    places = [_place(reader) for _ in range(n_tensors)]
    alignment = values.get(_ALIGNMENT, _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ValueError("its alignment is wrong")
    start = -(-reader.offset // alignment) * alignment
    return {name: _vector(data, start + offset, n) for name, n, offset in places}


def _place(reader: GgufReader) -> tuple[str, int, int]:
    """Read where a tensor is: name, number of elements, offset."""
    name, n_dims = reader.text(), reader.take("I")
    if n_dims != 1:
        raise ValueError(f"tensor {name} is not a vector")
    n, kind, offset = reader.take("Q"), reader.take("I"), reader.take("Q")
    if kind != _F32:
        raise ValueError(f"tensor {name} is not float32")
    return name, n, offset


def _vector(data: bytes, start: int, n: int) -> Vector:
    if n <= 0 or start + 4 * n > len(data):
        raise ValueError("a tensor goes beyond its end")
    return np.frombuffer(data, np.dtype("<f4"), n, start).astype(np.float32)
