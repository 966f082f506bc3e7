"""Starts llama.cpp once, and keeps its latest log lines.

llama.cpp's constructors return NULL and put the reason into the log; the last warnings and errors
are kept for error messages.
"""

import ctypes
import logging
import re
from collections import deque
from functools import cache
from typing import NamedTuple

import llama_cpp
import llama_cpp.llama_cpp as lib

logger = logging.getLogger(__name__)

_INFO, _WARN, _ERROR, _CONTINUED = 2, 3, 4, 5
"""Levels of ggml's log: `ggml_log_level`."""
_recent: deque[str] = deque(maxlen=20)
_placed: deque[str] = deque(maxlen=100)
"""Log lines about the placement of layers and caches."""
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_BUFFER = re.compile(r"([\w.:-]+) (model|KV|compute) buffer size = +([\d.]+) MiB")

logits_address = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
    ctypes.cast(lib.llama_get_logits, ctypes.c_void_p).value or 0
)
"""`llama_get_logits`, returning an integer instead of a pointer object, which is faster."""


@lib.llama_log_callback  # type: ignore[untyped-decorator] # llama_cpp is untyped
def on_log(level: int, text: bytes, _data: object) -> None:
    """Callback for a library's log."""
    keep(level, text)


def keep(level: int, text: bytes) -> None:
    """Keep a piece of llama.cpp's log; any thread of the library may call it."""
    # An exception here would be lost in C code.
    line = text.decode(errors="replace").rstrip()
    if not line or line.strip(".") == "":
        return
    if level in (_WARN, _ERROR):
        _recent.append(line)
        logger.debug("llama.cpp", extra={"line": line})
    elif level == _CONTINUED and _recent:
        _recent[-1] += line
    elif level == _INFO and ("offloaded" in line or "buffer size" in line):
        _placed.append(line)


@cache
def start() -> None:
    """Initialize llama.cpp for this process; later calls do nothing."""
    lib.llama_log_set(on_log, None)  # in place of the one that its package has set
    lib.llama_backend_init()


def forget_log() -> None:
    """Drop the kept lines, before a call whose messages will be needed."""
    _recent.clear()


def last_warnings() -> str:
    """Return the newest warnings and errors as one line, or an empty string."""
    return " | ".join(list(_recent)[-4:])


class Buffer(NamedTuple):
    """One buffer of a model or its context."""

    device: str
    kind: str
    """`model`, `KV` or `compute`."""
    mib: float

    def __str__(self) -> str:
        return f"{self.device} {self.kind} {self.mib:.0f} MiB"


class LayerPlacement(NamedTuple):
    """Where llama.cpp put a model, read from its log."""

    n_offloaded: int
    n_layers: int
    """0 if the log says nothing about layers, as without a GPU."""
    buffers: tuple[Buffer, ...]


def forget_placement() -> None:
    """Drop the lines about placement, before a model is loaded."""
    _placed.clear()


def placement() -> LayerPlacement:
    """Return the placement of layers and caches made since `forget_placement`."""
    text = "\n".join(_placed)
    layers = _OFFLOADED.search(text)
    buffers = (Buffer(device, kind, float(mib)) for device, kind, mib in _BUFFER.findall(text))
    counts = (int(layers[1]), int(layers[2])) if layers else (0, 0)
    return LayerPlacement(*counts, tuple(buffers))


def ignored_override() -> str:
    """Return the line about a metadata override that llama.cpp ignored, or an empty string."""
    return next((line for line in _recent if "metadata override" in line), "")


def build() -> str:
    """Name the llama.cpp that runs: `b<binding version>-<llama.cpp version>`."""
    return f"b{llama_cpp.__version__}-{lib.llama_version().decode()}"
